"""fp16 and bf16 around the edges: who listens, what is overridden, interrupted, resumed or
refused.
"""

import math

import pytest
import torch
from lightning.pytorch import Callback

from helpers.trainer.tiny_trainings import (
    At,
    Tiny,
    losses,
    make_trainer,
    same_bits,
    tiny,
    weights,
    with_trainer_in_callbacks,
)
from lightrainer import Trainer


class Steep(Tiny):
    """Its first steps are left out under fp16."""

    def forward(self, x, labels=None):
        outputs = super().forward(x, labels)
        return {**outputs, "loss": outputs["loss"] * 300.0} if "loss" in outputs else outputs


def steep():
    torch.manual_seed(3)
    return Steep()


class Listening(Callback):
    def __init__(self):
        self.heard = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        norms = [p.grad.norm() for p in pl_module.parameters()]
        self.heard.append((trainer.global_step, torch.stack(norms).norm().item()))


def trained(made):
    """With the same random numbers each time."""
    torch.manual_seed(5)
    made.train()


def history(made):
    return [
        {k: str(v) for k, v in entry.items() if "_" not in k or "loss" in k}
        for entry in made.state.log_history
    ]


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_with_a_lightning_callback_is_unchanged(
    tmp_path, precision, optim, accumulation
):
    """Its hooks see gradients without the scale; losses, rates, weights and scale are the same."""
    settings = {"optim": optim, "num_train_epochs": 5, "eval_strategy": "epoch", precision: True}
    settings["gradient_accumulation_steps"] = accumulation
    listening = Listening()
    alone = make_trainer(tmp_path, model=steep(), **settings)
    heard = make_trainer(tmp_path, model=steep(), callbacks=[listening], **settings)
    for trainer in (alone, heard):
        trained(trainer)
    assert history(alone) == history(heard)
    assert same_bits(weights(alone.model), weights(heard.model))
    assert [step for step, _ in listening.heard] == list(range(alone.state.global_step))
    finite = [norm for _, norm in listening.heard if math.isfinite(norm)]
    assert max(finite) < 1.01  # clipped to 1: with the scale in them they would be thousands
    if precision == "fp16":
        assert len(finite) < len(listening.heard)
        assert alone.accelerator.scaler.state_dict() == heard.accelerator.scaler.state_dict()
        assert alone.accelerator.scaler.get_scale() < 65536.0


def test_gradients_are_unscaled_where_callbacks_and_overrides_see_them(tmp_path):
    """Before `on_pre_optimizer_step`, also when clipping is overridden, done twice, or left out."""

    class ByValue(Trainer):
        def _clip_grad_norm(self, model):
            norm = self.accelerator.clip_grad_norm_(model.parameters(), 1e9)
            self.accelerator.clip_grad_norm_(model.parameters(), 1e9)
            return norm

    def seen(cls, **asked):
        gradients = []
        look = At("on_pre_optimizer_step", lambda made, *_: gradients.append(first_gradient(made)))
        with_trainer_in_callbacks(
            make_trainer(tmp_path, cls, callbacks=[look], **{"fp16": True, **asked})
        ).train()
        return gradients

    plain, single = seen(Trainer, max_grad_norm=1e9), seen(Trainer, max_grad_norm=1e9, fp16=False)
    assert len(plain) == 4
    assert plain == seen(ByValue) == seen(Trainer, max_grad_norm=0.0)
    assert plain == pytest.approx(single, rel=0.05)
    assert plain != single


def wrapped(how):
    model = tiny()
    if how == "a compiled part":
        model.first = torch.compile(model.first, backend="eager")
    if "whole" in how:
        model = torch.compile(model, backend="eager")
    return torch.nn.DataParallel(model) if "parallel" in how else model


of_several = pytest.mark.cpu_only("DataParallel scatters batches with kernels of CUDA")
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="DataParallel would use the GPU")
IN_PARALLEL = [
    pytest.param(how, marks=[of_several, without_gpu])
    for how in ("in parallel", "whole in parallel")
]


@pytest.mark.parametrize("clip", [0.5, 0.0])
@pytest.mark.parametrize("how", ["whole", "a compiled part", "torch_compile", *IN_PARALLEL])
def test_gradients_of_a_wrapped_model_are_clipped_and_logged_without_the_scale(tmp_path, how, clip):
    """As those of the model itself: the same losses, norms and weights."""
    settings = {"fp16": True, "max_grad_norm": clip, "optim": "sgd", "learning_rate": 0.1}
    compiling = (
        {"torch_compile": True, "torch_compile_backend": "eager"} if how == "torch_compile" else {}
    )
    plain, other = (
        make_trainer(tmp_path, **settings),
        make_trainer(tmp_path, model=wrapped(how), **settings, **compiling),
    )
    for trainer in (plain, other):
        trained(trainer)
    assert losses(other) == losses(plain)
    norms = (
        [entry["grad_norm"] for entry in trainer.state.log_history[:-1]]
        for trainer in (plain, other)
    )
    assert next(norms) == next(norms)
    assert all(map(torch.equal, weights(other.model).values(), weights(plain.model).values()))
    assert not same_bits(weights(plain.model), weights(tiny()))


def first_gradient(made):
    return next(made.model.parameters()).grad.norm().item()


def test_mixed_precision_skipped_step_is_reported_to_callbacks(tmp_path):
    skipped, rates = [], []
    look = At(
        "on_optimizer_step",
        lambda trainer, *_: skipped.append(trainer.accelerator.optimizer_step_was_skipped),
    )
    after = At(
        "on_step_end", lambda trainer, *_: rates.append(trainer.lr_scheduler.get_last_lr()[0])
    )
    trainer = with_trainer_in_callbacks(
        make_trainer(
            tmp_path, model=steep(), callbacks=[look, after], fp16=True, optim="sgd", max_steps=12
        )
    )
    before = weights(trainer.model)
    trainer.train()
    assert skipped[:3] == [True] * 3
    assert not skipped[-1]
    first = skipped.index(False)
    assert rates[:first] == [1e-2] * first
    assert rates[first] < 1e-2
    assert not same_bits(before, weights(trainer.model))
    assert trainer.state.global_step == len(skipped) == 12


def test_loss_scale_is_kept_in_a_second_training_of_the_same_precision(tmp_path):
    """The last step in float16 was left out; in bfloat16 the learning rate moves all the same."""
    trainer = make_trainer(tmp_path, model=steep(), fp16=True, max_steps=3, optim="sgd")
    trainer.train()
    scale, trainer.args.max_steps = trainer.accelerator.scaler.get_scale(), 2
    trainer.train()
    assert trainer.accelerator.scaler.get_scale() == scale / 4 < 65536.0 / 4
    trainer.args.mixed_precision = "bf16"
    trainer.train()
    assert trainer.accelerator.scaler is None
    rates = [
        entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry
    ]
    assert rates == pytest.approx([1e-2, 5e-3])


@pytest.mark.parametrize("event", ["on_pre_optimizer_step", "on_substep_end"])
def test_mixed_precision_interrupted_step_leaves_nothing_behind(tmp_path, event):
    """Neither scaled gradients, nor the belief that they are unscaled: the next training is as
    if it were the first.
    """

    def interrupt(*_):
        raise KeyboardInterrupt

    settings = {"fp16": True, "gradient_accumulation_steps": 2, "optim": "sgd"}
    trainer = make_trainer(tmp_path, callbacks=[At(event, interrupt)], **settings)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert first_gradient(trainer) > 0
    for callback in trainer.callback_handler.callbacks:
        vars(callback).pop(event, None)
    fresh = make_trainer(tmp_path, **settings)
    for restarted in (trainer, fresh):
        trained(restarted)
    assert losses(trainer) == losses(fresh)
    assert same_bits(weights(trainer.model), weights(fresh.model))


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_weights_in_float16_cannot_be_scaled(tmp_path, name):
    """Said before the first step, with the remedy; those that are not trained may be anything."""
    model = tiny()
    model.second.half()
    for parameter in model.second.parameters():
        parameter.requires_grad_(False)
    make_trainer(tmp_path, model=model, **{name: True}, max_steps=1).train()
    model.second.weight.requires_grad_(True)
    trainer = make_trainer(tmp_path, model=model, **{name: True}, max_steps=1)
    if name == "bf16":
        trainer.train()
        return
    with pytest.raises(
        ValueError,
        match=r"1 of 5 trained parameters are float16.*'second.weight'.*model\.float\(\)",
    ):
        trainer.train()


def test_mixed_precision_checkpoint_without_a_scale_gets_a_new_one(tmp_path, caplog):
    """And one with a scale without fp16."""
    saved = make_trainer(tmp_path, max_steps=4, save_strategy="steps", save_steps=2)
    saved.train()
    trainer = make_trainer(tmp_path, max_steps=4, fp16=True, save_strategy="steps", save_steps=2)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert "has no scaler.pt" in caplog.text
    assert trainer.state.global_step == 4
    assert (tmp_path / "checkpoint-4" / "scaler.pt").is_file()
    plain = make_trainer(tmp_path, max_steps=5)
    plain.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert plain.state.global_step == 5
