"""Options of `lightning.Trainer` have their effect with our modules and data too."""

import copy
import math

import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import BackboneFinetuning, ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.tuner import Tuner
from torch.utils.data import IterableDataset

from helpers.lightning.tiny_modules import Net, Seen, make_trainer, points, same_weights, seeded
from lightrainer.lightning_modules import DataModule, LossModule, OptimizerConfig, set_seed

OPTIMIZER = {"learning_rate": 0.05, "weight_decay": 0.1}


def module(kind=LossModule, model=Net, **kwargs):
    return kind(seeded(model), **{"optimizer": OPTIMIZER, **kwargs})


def data(**kwargs):
    return DataModule(points(), points(10, seed=5), **{"batch_size": 4, **kwargs})


def fitted(made=None, datamodule=None, **options):
    """The module after a training with these options, and what was seen of it."""
    made, recorder = module() if made is None else made, Seen()
    trainer = make_trainer(**options, callbacks=[recorder])
    set_seed(7)
    trainer.fit(made, data() if datamodule is None else datamodule)
    return made, recorder, trainer


def test_lightning_backward_optimizer_cannot_accumulate(monkeypatch):
    target = "lightrainer.lightning_modules.tasks.optimizer_module.steps_in_backward"
    monkeypatch.setattr(target, lambda optimizer: True)
    with pytest.raises(ValueError, match="accumulate_grad_batches=2"):
        fitted(accumulate_grad_batches=2)


def test_lightning_optimizer_with_other_weights_in_evaluations():
    """Like an optimizer without a schedule: it adds 1 to the weights while it evaluates."""

    class Switched(torch.optim.SGD):
        evaluates = False

        def train(self):
            if self.evaluates:
                self._move(-1.0)
            self.evaluates = False

        def eval(self):
            if not self.evaluates:
                self._move(1.0)
            self.evaluates = True

        @torch.no_grad()
        def _move(self, amount):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(amount)

    weights = {}

    class Watched(LossModule):
        def on_train_batch_start(self, batch, batch_idx):
            weights["train"] = self._first_weight()

        def on_validation_batch_start(self, batch, batch_idx, dataloader_idx=0):
            weights["eval"] = self._first_weight()

        def _first_weight(self):
            return next(self.model.parameters()).detach().flatten()[0].item()

    lightning_module = module(Watched, optimizer=lambda groups: Switched(groups, lr=0.0))
    trainer = fitted(lightning_module, max_epochs=1, val_check_interval=1, num_sanity_val_steps=2)[
        2
    ]
    first = next(seeded(Net).parameters()).flatten()[0].item()
    assert weights == pytest.approx({"train": first, "eval": first + 1})

    # The module is trained with the weights of the training again.
    trainer.fit_loop.max_epochs = 2
    trainer.fit(lightning_module, data())
    assert weights["eval"] == pytest.approx(weights["train"] + 1)


class TestClipping:
    def test_value(self):
        sgd = {"class_path": "torch.optim.SGD", "init_args": {"lr": 1.0}}
        options = {
            "gradient_clip_val": 1e-3,
            "gradient_clip_algorithm": "value",
            "limit_train_batches": 1,
        }
        clipped = fitted(module(optimizer=sgd), max_epochs=1, **options)[0].model
        pairs = zip(clipped.parameters(), seeded(Net).parameters(), strict=True)
        assert max((now - then).abs().max().item() for now, then in pairs) == pytest.approx(
            1e-3, rel=1e-3
        )

    @pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
    def test_lightning_default_optimizer_clips_under_mixed_precision(self, precision):
        """It is a fused one, which Lightning alone refuses to clip for. Clipped to nothing,
        nothing moves.
        """
        plugins = [MixedPrecision(precision, "cpu")]
        sgd = {"name": "sgd", "learning_rate": 1.0}
        for optimizer in ({"learning_rate": 0.05}, sgd):
            lightning_module = module(optimizer=optimizer)
            _, recorder, _ = fitted(
                lightning_module, plugins=plugins, gradient_clip_val=0.5, max_epochs=1
            )
            assert all(map(math.isfinite, recorder.losses))
        start, clipped = (
            seeded(Net),
            fitted(module(optimizer=sgd), plugins=plugins, gradient_clip_val=1e-12)[0].model,
        )
        torch.testing.assert_close(clipped.state_dict(), start.state_dict(), rtol=0, atol=1e-6)


class TestPrecision:
    FP16_ON_CPU = {"plugins": [MixedPrecision("16-mixed", "cpu")], "accelerator": "cpu"}

    @pytest.mark.parametrize("options", [{"precision": "bf16-mixed"}, FP16_ON_CPU])
    def test_mixed(self, options):
        """Half precision is used, learns, and gives nearly the numbers of full precision;
        weights stay in full.
        """
        dtypes = []
        lightning_module = module()
        lightning_module.model.layers[0].register_forward_hook(
            lambda layer, args, output: dtypes.append(output.dtype)
        )
        _, recorder, trainer = fitted(lightning_module, max_epochs=8, **options)
        half = torch.bfloat16 if "precision" in options else torch.float16
        assert set(dtypes) == {half}
        assert {parameter.dtype for parameter in lightning_module.parameters()} == {torch.float32}
        whole = fitted(max_epochs=8)[1]
        assert recorder.losses != whole.losses
        assert recorder.losses[:6] == pytest.approx(whole.losses[:6], abs=0.05)
        assert sum(recorder.losses[-6:]) < sum(recorder.losses[:6]) / 2
        scaler = trainer.precision_plugin.scaler
        assert (scaler is not None and scaler.get_scale() > 1) == (half == torch.float16)


class Counter(IterableDataset):
    """A stream that gives other samples in each epoch."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(points(12, seed=100 + self.epoch))


class TestLimits:
    @pytest.mark.parametrize("dataset", [points(), Counter()], ids=["map", "stream"])
    def test_overfit_batches(self, dataset):
        """The same two batches in every epoch, in order; without it they are others."""
        datamodule = lambda: DataModule(dataset, batch_size=4)
        overfitted = fitted(datamodule=datamodule(), overfit_batches=2, max_epochs=30)[1]
        assert len(overfitted.batches) == 60
        assert all(
            torch.equal(batch, overfitted.batches[index % 2])
            for index, batch in enumerate(overfitted.batches)
        )
        assert overfitted.losses[-1] < 0.1 < overfitted.losses[0], "and they are memorized"
        limited = fitted(datamodule=datamodule(), limit_train_batches=2, max_epochs=2)[1]
        assert not torch.equal(limited.batches[0], limited.batches[2])


# no validation
@pytest.mark.filterwarnings("ignore:Total length of `list` across ranks is zero")
class TestTuner:
    def test_learning_rate_with_metrics(self, tmp_path):
        """The search validates after each epoch, without the callbacks that reset metrics."""
        lightning_module = module(
            metrics={"size": lambda logits, labels: len(labels)}, train_metrics=True
        )
        trainer = make_trainer(default_root_dir=tmp_path, max_epochs=4)
        Tuner(trainer).lr_find(lightning_module, datamodule=data(), num_training=20)
        trainer.fit(lightning_module, datamodule=data())
        assert lightning_module.metric_values == {"val_size": 10, "train_size": 22}

    def test_learning_rate(self, tmp_path):
        lightning_module, trainer = (
            module(schedule={"name": "linear"}),
            make_trainer(default_root_dir=tmp_path, max_epochs=9),
        )
        lr_finder = Tuner(trainer).lr_find(lightning_module, datamodule=data(), num_training=40)
        assert (
            lr_finder.suggestion() == lightning_module.learning_rate != OPTIMIZER["learning_rate"]
        )
        assert (
            lightning_module.hparams["optimizer"]["learning_rate"] == lightning_module.learning_rate
        )
        assert same_weights(lightning_module.model, seeded(Net)), "the search leaves no trace"
        recorder = Seen()
        trainer = make_trainer(default_root_dir=tmp_path, callbacks=[recorder])
        trainer.fit(lightning_module, data())
        assert recorder.rates[0] == lightning_module.learning_rate, "and the training uses it"
        assert recorder.rates[-1] == pytest.approx(lightning_module.learning_rate / 12)

    def test_learning_rate_of_a_class_path_and_of_a_function(self, tmp_path):
        forms = [
            {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
            lambda groups: torch.optim.SGD(groups),
        ]
        for form in forms:
            lightning_module, trainer = (
                module(optimizer=form),
                make_trainer(default_root_dir=tmp_path, max_epochs=9),
            )
            lr_finder = Tuner(trainer).lr_find(lightning_module, datamodule=data(), num_training=30)
            assert lightning_module.learning_rate == lr_finder.suggestion()
            assert {
                group["lr"] for group in lightning_module.configure_optimizers().param_groups
            } == {lightning_module.learning_rate}

    def test_batch_size(self, tmp_path):
        """Doubled from 2, trial by trial, and the loaders follow."""
        lightning_module, datamodule = module(), DataModule(points(64), batch_size=2)
        trainer = make_trainer(default_root_dir=tmp_path, max_epochs=1)
        trials = {"init_val": 2, "max_trials": 3, "steps_per_trial": 2}
        suggested = Tuner(trainer).scale_batch_size(
            lightning_module, datamodule=datamodule, **trials
        )
        assert suggested == datamodule.batch_size == datamodule.hparams["batch_size"] == 8
        assert same_weights(lightning_module.model, seeded(Net))
        recorder = Seen()
        make_trainer(max_epochs=1, callbacks=[recorder]).fit(lightning_module, datamodule)
        assert [len(batch) for batch in recorder.batches] == [8] * 8


@pytest.mark.cpu_only("torch.compile")
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)
@pytest.mark.parametrize("what", ["module", "model"])
def test_compiled_is_the_same(what):
    """`torch.compile` of the module or of the model, with the graphs of a real compiler, if not
    its code.
    """
    graphs, losses = [], {}
    backend = lambda graph, inputs: graphs.append(graph) or graph.forward
    for compiled in (None, what):
        torch.compiler.reset()
        model = seeded(Net)
        if compiled == "model":
            model = torch.compile(model, backend=backend)
        lightning_module = LossModule(
            model, optimizer=OPTIMIZER, schedule={"name": "linear", "warmup_steps": 2}
        )
        if compiled == "module":
            lightning_module = torch.compile(lightning_module, backend=backend)
        losses[compiled] = fitted(lightning_module, accumulate_grad_batches=2)[1].losses
    assert graphs
    assert losses[what] == pytest.approx(losses[None], rel=1e-5)


def test_weight_decay_spares_biases_and_norms():
    """In every form in which an optimizer can be given: without gradients only matrices shrink."""
    forms = [
        OptimizerConfig(**OPTIMIZER),
        {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.05, "weight_decay": 0.1}},
        lambda groups: torch.optim.AdamW(groups, lr=0.05, weight_decay=0.1),
    ]
    for form in forms:
        lightning_module = module(optimizer=form)
        before = copy.deepcopy(lightning_module.model.state_dict())
        optimizer = lightning_module.configure_optimizers()
        for parameter in lightning_module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        shrunk = {
            name
            for name, value in lightning_module.model.state_dict().items()
            if not torch.equal(value, before[name])
        }
        assert shrunk == {"layers.0.weight", "layers.3.weight"}


def test_lightning_torch_schedule_steps_after_each_epoch():
    halving = {
        "class_path": "torch.optim.lr_scheduler.StepLR",
        "init_args": {"step_size": 1, "gamma": 0.5},
    }
    for schedule in (
        halving,
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
    ):
        recorder = fitted(module(schedule=schedule))[1]
        assert recorder.rates == [0.05] * 6 + [0.025] * 6


def test_lightning_model_is_set_to_training_mode():
    """`from_pretrained` leaves it in evaluation mode, without dropout."""
    module = LossModule(seeded(Net, dropout=0.5), optimizer=OPTIMIZER)
    module.model.eval()
    assert (
        fitted(module)[1].losses
        == fitted(LossModule(seeded(Net, dropout=0.5), optimizer=OPTIMIZER))[1].losses
    )


class OwnStep(LossModule):
    """Computes its loss itself, without a number of items."""

    def training_step(self, batch, batch_idx):
        return self.model(**batch)["loss"] * 2


class OwnOptimization(LossModule):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx) * 2)
        optimizer.step()


def test_lightning_subclass_with_own_steps():
    """Their losses are divided by the batches of a step, as Lightning does; not where they step
    by themselves.
    """
    sgd = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}
    texts = DataModule(points(8), batch_size=4, shuffle=False)
    whole = {name: torch.stack([item[name] for item in points(8)]) for name in ("x", "labels")}
    expected = seeded(Net)
    (expected(**whole)["loss"] * 2).backward()
    divided = fitted(
        OwnStep(seeded(Net), optimizer=sgd), texts, accumulate_grad_batches=2, max_epochs=1
    )[0]
    stepping = OwnOptimization(seeded(Net), optimizer=sgd)
    make_trainer(max_epochs=1).fit(stepping, DataModule(points(8), batch_size=8, shuffle=False))
    for trained in (divided, stepping):
        for before, after in zip(expected.parameters(), trained.parameters(), strict=True):
            torch.testing.assert_close(after, before - 0.1 * before.grad)


class TrainsBias(LossModule):
    def configure_optimizers(self):
        return torch.optim.SGD([list(self.parameters())[-1]], lr=0.1)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_clipping_leaves_out_gradients_that_no_optimizer_clears(accumulated):
    """They grow from step to step. Frozen parameters have none, and are clipped the same."""
    options = {"gradient_clip_val": 0.05, "accumulate_grad_batches": accumulated}
    trained = fitted(TrainsBias(seeded(Net)), **options)[0]
    frozen = TrainsBias(seeded(Net))
    for parameter in list(frozen.parameters())[:-1]:
        parameter.requires_grad_(False)
    fitted(frozen, **options)
    assert same_weights(trained, frozen)
    assert not same_weights(trained, seeded(Net))


class ReadsGradients(LossModule):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.norms = []

    def on_before_optimizer_step(self, optimizer):
        gradients = [weight.grad for weight in self.parameters()]
        self.norms.append(torch.nn.utils.get_total_norm(gradients).item())


@pytest.mark.parametrize("clipped", [None, 0.05])
def test_hooks_read_gradients_without_the_loss_scale(clipped):
    """Also those of the default, fused optimizer."""
    norms = []
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for plugins in ([], [MixedPrecision("16-mixed", "cpu", scaler)]):
        trained = ReadsGradients(seeded(Net))
        options = {"plugins": plugins, "accelerator": "cpu", "gradient_clip_val": clipped}
        make_trainer(max_epochs=1, **options).fit(trained, DataModule(points(), batch_size=4))
        norms.append(trained.norms)
    assert norms[1] == pytest.approx(norms[0], rel=1e-2)


class WithBackbone(LossModule):
    @property
    def backbone(self):
        return self.model.layers[0]


@pytest.mark.parametrize("schedule", [None, "constant", "linear"])
def test_groups_that_a_callback_adds(tmp_path, schedule):
    """They have the configured decay, and keep their share of the rate; so they do in a resumed
    training.
    """

    def trained(**options):
        lightning_module = module(
            WithBackbone, schedule=None if schedule is None else {"name": schedule}
        )
        tuning = BackboneFinetuning(unfreeze_backbone_at_epoch=1, lambda_func=lambda epoch: 2.0)
        saving = ModelCheckpoint(dirpath=tmp_path, filename="{epoch}", save_top_k=-1)
        trainer = make_trainer(max_epochs=3, callbacks=[tuning, saving], enable_checkpointing=True)
        set_seed(7)
        trainer.fit(lightning_module, DataModule(points(), batch_size=4), **options)
        return lightning_module, trainer.optimizers[0].param_groups

    (finetuned, groups), frozen = trained(), seeded(Net).layers[0].weight
    assert [(group["weight_decay"], len(group["params"])) for group in groups] == [
        (0.1, 1),
        (0.0, 3),
        (0.1, 2),
    ]
    assert groups[2]["lr"] == pytest.approx(groups[0]["lr"] * 0.2)
    assert not torch.equal(finetuned.model.layers[0].weight, frozen)
    assert same_weights(trained(ckpt_path=tmp_path / "epoch=0.ckpt")[0].model, finetuned.model)
    # of which Lightning leaves the backbone frozen
    again = trained(ckpt_path=tmp_path / "epoch=1.ckpt")[1]
    assert [group["lr"] for group in again] == [group["lr"] for group in groups]


def test_schedules_that_need_no_length_are_made_without_a_trainer():
    """The others ask for one."""
    stable = {
        "name": "warmup_stable_decay",
        "kwargs": {"num_decay_steps": 2, "num_stable_steps": 3},
    }
    for schedule in (
        stable,
        {"name": "inverse_sqrt", "warmup_steps": 4},
        {"name": "linear", "total_steps": 9},
    ):
        configured = (
            Fabric(devices=1).setup_module(module(schedule=schedule)).configure_optimizers()
        )
        assert configured["lr_scheduler"]["scheduler"] is not None
    with pytest.raises(RuntimeError, match="not attached to a `Trainer`"):
        module(
            schedule={"name": "constant_with_warmup", "warmup_steps": 0.1}
        ).configure_optimizers()
