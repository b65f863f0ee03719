"""The Trainer's side of the optimizers: what it makes of the arguments, and when it speaks to
them.
"""

import copy
import sys
import types

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import nn

from helpers.trainer.tiny_trainings import At, losses, make_trainer, tiny, trained_trainer
from lightrainer import Trainer
from lightrainer.facade.distributed.process import ProcessEnvironment
from lightrainer.lightning_modules.optim import LayerwiseOptimizer


class InBackward(torch.optim.Optimizer):
    """SGD in the backward pass, with the interface of LOMO: it takes the model, and has no
    `step`.
    """

    def __init__(self, model, lr):
        super().__init__(
            [parameter for parameter in model.parameters() if parameter.requires_grad], {"lr": lr}
        )
        self.rates = []

    def fused_backward(self, loss, lr):
        self.rates.append(lr)
        loss.backward()
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-lr)
                    parameter.grad = None


@pytest.fixture
def stand_ins(monkeypatch):
    lomo, galore = types.ModuleType("lomo_optim"), types.ModuleType("galore_torch")
    lomo.Lomo = lomo.AdaLomo = InBackward
    galore.GaLoreAdamW = galore.GaLoreAdamW8bit = torch.optim.SGD
    monkeypatch.setitem(sys.modules, "lomo_optim", lomo)
    monkeypatch.setitem(sys.modules, "galore_torch", galore)


def weights(made):
    return torch.cat([parameter.detach().cpu().flatten() for parameter in made.model.parameters()])


@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
def test_lomo_gives_the_weights_of_sgd(tmp_path, stand_ins, max_grad_norm):
    """Clipping comes too late for it, as in the reference. Its steps may round otherwise."""
    order = []
    events = ["on_step_begin", "on_pre_optimizer_step", "on_step_end"]
    callbacks = [At(event, lambda *_, event=event: order.append(event)) for event in events]
    fused = trained_trainer(
        tmp_path, optim="lomo", max_grad_norm=max_grad_norm, callbacks=callbacks
    )
    assert order == events * 4
    rates = [
        entry["learning_rate"] for entry in fused.state.log_history if "learning_rate" in entry
    ]
    assert fused.optimizer.rates == rates == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
    sgd = trained_trainer(tmp_path, optim="sgd", max_grad_norm=0.0)
    torch.testing.assert_close(weights(fused), weights(sgd))
    assert not torch.equal(weights(fused), weights(make_trainer(tmp_path))), (
        "negative control: it was trained"
    )
    assert all(entry["grad_norm"] == 0 for entry in fused.state.log_history if "grad_norm" in entry)


def test_lomo_of_the_user_steps_too(tmp_path):
    """Where `optim` does not name it, and under Lightning callbacks."""
    step_losses, trainers = [], []
    watching = LambdaCallback(
        on_before_backward=lambda trainer, module, loss: step_losses.append(loss.item())
    )
    for changes in ({}, {"callbacks": [watching]}):
        model = tiny()
        optimizer = InBackward(model, lr=0.01)
        trainers.append(
            trained_trainer(tmp_path, model=model, optimizers=(optimizer, None), **changes)
        )
    sgd = trained_trainer(tmp_path, optim="sgd", max_grad_norm=0.0)
    torch.testing.assert_close(weights(trainers[0]), weights(sgd))
    assert torch.equal(weights(trainers[1]), weights(trainers[0]))
    assert len(step_losses) == 4


def test_layerwise_optimizer_in_a_second_training_has_one_schedule(tmp_path, stand_ins):
    trainer = trained_trainer(
        tmp_path,
        optim="galore_adamw_layerwise",
        optim_target_modules="all-linear",
        max_grad_norm=0.0,
    )
    assert isinstance(trainer.optimizer, LayerwiseOptimizer)
    inner = next(iter(trainer.optimizer.optimizer_dict.values()))
    trainer.train()
    assert inner.param_groups[0]["lr"] == 0.0


REFUSED = [
    (
        {"optim": "galore_adamw_layerwise", "gradient_accumulation_steps": 2},
        "gradient_accumulation_steps=2",
    ),
    ({"optim": "galore_adamw_layerwise", "fp16": True}, "fp16=True"),
    ({"optim": "lomo", "fp16": True}, "fp16=True"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=str)
def test_conflicts_with_steps_in_the_backward_pass(tmp_path, stand_ins, changes, words):
    trainer = make_trainer(tmp_path, optim_target_modules="all-linear", **changes)
    before = weights(trainer)
    with pytest.raises(
        ValueError, match=rf"The optimizer \w+ steps in each backward pass.*{words}"
    ):
        trainer.train()
    assert torch.equal(weights(trainer), before)


def test_layerwise_optimizer_is_not_chosen_for_accumulation(tmp_path, stand_ins):
    """As in transformers: scripts ask for the class themselves."""
    args = make_trainer(
        tmp_path,
        optim="galore_adamw_layerwise",
        optim_target_modules="all-linear",
        gradient_accumulation_steps=2,
    ).args
    with pytest.raises(ValueError, match="gradient_accumulation_steps=2"):
        Trainer.get_optimizer_cls_and_kwargs(args, tiny())
    args.gradient_accumulation_steps = 1
    chosen, _ = Trainer.get_optimizer_cls_and_kwargs(args, tiny())
    assert chosen is LayerwiseOptimizer


@pytest.mark.parametrize("optim", ["galore_adamw_layerwise", "lomo"])
def test_layerwise_optimizer_in_several_processes_is_refused(
    tmp_path, stand_ins, monkeypatch, optim
):
    trainer = make_trainer(tmp_path, optim=optim, optim_target_modules="all-linear")
    four = ProcessEnvironment(
        rank=0, local_rank=0, world_size=4, local_world_size=4, device=torch.device("cpu")
    )
    monkeypatch.setattr(type(trainer.args), "distributed_state", four)
    with pytest.raises(NotImplementedError, match=r"The optimizer .*4 processes"):
        trainer.create_optimizer()


class WarmsUpItself(torch.optim.SGD):
    """SGD with two modes, as a schedule-free optimizer has them."""

    def __init__(self, params, lr, warmup_steps, weight_decay, weight_lr_power, r):
        super().__init__(params, lr=lr, weight_decay=weight_decay)
        self.warmup_steps, self.calls = warmup_steps, []

    def train(self):
        self.calls.append("train")

    def eval(self):
        self.calls.append("eval")


@pytest.fixture
def schedule_free(monkeypatch):
    module = types.ModuleType("schedulefree")
    module.SGDScheduleFree = WarmsUpItself
    monkeypatch.setitem(sys.modules, "schedulefree", module)


@pytest.mark.parametrize(("given", "steps"), [(3, 3), (0.5, 2), (0.0, 0)])
def test_optimizer_warm_up_counts_steps(tmp_path, schedule_free, given, steps):
    """The reference passes a share on as it is, and the rate begins ten times too high."""
    trainer = trained_trainer(tmp_path, optim="schedule_free_sgd", warmup_steps=given)
    assert trainer.optimizer.warmup_steps == steps


def test_optimizer_share_of_a_training_of_unknown_length(tmp_path, schedule_free):
    trainer = make_trainer(tmp_path, optim="schedule_free_sgd", warmup_steps=0.5)
    with pytest.raises(ValueError, match=r"warmup_steps=0\.5"):
        trainer.create_optimizer()


def test_optimizer_is_switched_between_training_and_evaluation(tmp_path, schedule_free):
    trainer = trained_trainer(
        tmp_path, optim="schedule_free_sgd", eval_strategy="steps", eval_steps=2
    )
    assert trainer.optimizer.calls == ["train", "train", "eval", "train", "train", "eval"]
    trainer.evaluate()
    assert trainer.optimizer.calls[-1] == "eval"


class OnlyReturning(Trainer):
    """Overrides that set nothing, with which transformers 5.3.0 fails at `None`."""

    def create_optimizer(self, model=None):
        return torch.optim.SGD(self.model.parameters(), lr=0.1)

    def create_scheduler(self, num_training_steps, optimizer=None):
        return torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)


def test_optimizer_and_schedule_that_overrides_only_return_are_used(tmp_path):
    trainer = trained_trainer(tmp_path, OnlyReturning)
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert [log["learning_rate"] for log in logs] == [0.1, 0.05, 0.025, 0.0125]
    trainer.train()
    assert trainer.lr_scheduler.last_epoch == 4  # each training has its own schedule


@pytest.mark.parametrize("name", ["create_optimizer", "create_optimizer_and_scheduler"])
def test_override_that_makes_no_optimizer_is_named(tmp_path, name):
    forgetful = type("Forgetful", (Trainer,), {name: lambda self, *args, **kwargs: None})
    with pytest.raises(ValueError, match=rf"{name}.*self\.optimizer"):
        make_trainer(tmp_path, forgetful).train()


def made_too_early(made):
    made.create_optimizer()
    made.model = made.model_wrapped = tiny(5)


def of_another_model(made):
    made.optimizer = torch.optim.SGD(tiny(4).parameters(), lr=0.1)


def passed_and_swapped(made):
    made.optimizer = torch.optim.SGD(made.model.parameters(), lr=0.1)
    made.train()
    made.model = tiny(5)


@pytest.mark.parametrize("mistake", [made_too_early, of_another_model, passed_and_swapped])
def test_optimizer_of_another_model_is_refused(tmp_path, mistake):
    """No weight would move. Nothing is changed, and with a new optimizer the training goes."""
    trainer = make_trainer(tmp_path)
    mistake(trainer)
    before = weights(trainer)
    with pytest.raises(
        ValueError,
        match=r"none of the 6 trainable parameters.*first\.weight.*trainer\.optimizer =",
    ):
        trainer.train()
    assert all(map(torch.equal, before, weights(trainer)))
    trainer.optimizer = trainer.lr_scheduler = None
    trainer.train()
    assert not any(map(torch.equal, before, weights(trainer)))


def own_optimizer(self):
    """As scripts override `create_optimizer`."""
    if self.optimizer is None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
    return self.optimizer


@pytest.mark.parametrize("methods", [{}, {"create_optimizer": own_optimizer}])
def test_optimizer_of_a_training_is_created_again_for_another_model(tmp_path, methods):
    """As SetFit searches: one Trainer, whose model is replaced before each trial."""
    kind = type("Replaced", (Trainer,), methods)
    expected = make_trainer(tmp_path / "expected", kind)
    expected.model = expected.model_wrapped = tiny(5)
    expected.train()
    trainer = make_trainer(tmp_path / "made", kind)
    trainer.train()
    first = trainer.optimizer
    trainer.model = tiny(5)
    trainer.train()
    assert torch.equal(weights(trainer), weights(expected))
    second = trainer.optimizer
    assert second is not first
    trainer.train()
    assert trainer.optimizer is second  # the same model: its state stays, as in the reference


def test_optimizer_of_a_training_is_created_again_for_resized_weights(tmp_path):
    """`resize_token_embeddings` keeps the parameter; its averages have the old shape, outside of
    which a fused step would write.
    """
    trainer = make_trainer(tmp_path / "made")
    trainer.train()
    first = trainer.optimizer
    expected = make_trainer(tmp_path / "expected", model=copy.deepcopy(trainer.model))
    for model in (trainer.model, expected.model):
        last = model.second
        last.weight.data = torch.cat([last.weight.data, torch.ones(2, 6)])
        last.bias.data = torch.cat([last.bias.data, torch.ones(2)])
    for trained_again in (trainer, expected):
        torch.manual_seed(4)
        trained_again.train()
    assert trainer.optimizer is not first
    assert torch.equal(weights(trainer), weights(expected))


def new_layer(made):
    made.create_optimizer()
    made.model.second = nn.Linear(6, 3)


def only_a_part(made):
    layers = made.model.first, made.model.norm
    made.optimizer = torch.optim.SGD(
        [parameter for layer in layers for parameter in layer.parameters()], lr=0.1
    )


@pytest.mark.parametrize("mistake", [new_layer, only_a_part])
def test_parameters_that_no_group_has_are_named(tmp_path, caplog, mistake):
    """Once per training; frozen ones do not count."""
    trainer = make_trainer(tmp_path)
    mistake(trainer)
    trainer.train()
    messages = [
        record.getMessage() for record in caplog.records if "in no group" in record.getMessage()
    ]
    assert len(messages) == 1
    assert "2 of 6 trainable parameters" in messages[0]
    assert "second.weight, second.bias" in messages[0]
    caplog.clear()
    trainer.model.second.requires_grad_(False)
    trainer.train()
    assert "in no group" not in caplog.text


def tied():
    model = tiny()
    model.third = model.second
    return model


def given_back(model):
    """An optimizer that torch.compile's wrapper was asked for the parameters of."""
    compiled = torch.compile(model, backend="eager")
    return compiled, torch.optim.SGD(compiled.parameters(), lr=0.1)


MAKES = [
    lambda: (tied(), None),
    lambda: given_back(tiny()),
    lambda: (
        torch.compile(model := tiny(), backend="eager"),
        torch.optim.SGD(model.parameters(), lr=0.1),
    ),
    lambda: (
        model := tiny(),
        torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(2))], lr=0.1),
    ),
]


@pytest.mark.parametrize(
    "make", MAKES, ids=["tied", "of the compiled", "of the model in it", "with others"]
)
def test_optimizer_on_the_trained_model_is_accepted(tmp_path, caplog, make):
    model, optimizer = make()
    trainer = trained_trainer(tmp_path, model=model, optimizers=(optimizer, None))
    trainer.train()
    assert "group" not in caplog.text


def test_gradient_norm_excludes_the_loss_scale_outside_of_groups(tmp_path):
    """Under fp16 the scale is taken out of all gradients: the norm, and what clipping leaves,
    are nearly float32's.
    """

    def run(**changes):
        model = tiny()
        trainer = make_trainer(tmp_path, model=model, max_grad_norm=0.5, **changes)
        trainer.optimizer = torch.optim.SGD(model.second.parameters(), lr=0.1)
        torch.manual_seed(5)
        trainer.train()
        return losses(trainer), [entry["grad_norm"] for entry in trainer.state.log_history[:-1]]

    plain, half = run(), run(fp16=True)
    assert half[1] == pytest.approx(plain[1], rel=0.05)
    assert half[0] == pytest.approx(plain[0], rel=0.01)
    assert half[0] != plain[0]


def test_optimizer_that_needs_a_closure_is_refused(tmp_path):
    model = tiny()
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(ValueError, match=r"LBFGS needs a closure.*torch\.optim\.AdamW"):
        make_trainer(tmp_path, model=model, optimizers=(optimizer, None)).train()
