"""NaNGuardCallback: a step that would put NaN into the weights is skipped, and everything else
continues unchanged.
"""

import copy
import math

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import nn
from torch.nn import functional

from helpers.callbacks.small_training import make_trainer
from helpers.comparing.bit_differences import same_bits
from lightrainer import (
    NaNGuardCallback,
    NaNGuardError,
    TrainerCallback,
)

BAD = 3  # the step with the bad sample: two a step, no shuffling


class Model(nn.Module):
    """Dropout and batch norm, so that generators and running statistics count."""

    def __init__(self, tells_loss: bool = True):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.1)
        self.second = nn.Linear(8, 1)
        self.tells_loss = tells_loss

    def forward(self, x, labels=None):
        out = self.second(self.dropout(torch.tanh(self.norm(self.first(x))))).squeeze(-1)
        return (
            {"loss": functional.mse_loss(out, labels), "logits": out}
            if self.tells_loss
            else {"logits": out}
        )


def samples(bad=(2 * BAD - 2,), value=math.nan, where="x", count=16):
    torch.manual_seed(1)
    dataset = [{"x": torch.randn(4), "labels": torch.randn(())} for _ in range(count)]
    for index in bad:
        dataset[index][where] = torch.full_like(dataset[index][where], value)
    return dataset


def make(folder, data, *callbacks, model=None, **changes):
    torch.manual_seed(3)
    options = {
        "per_device_train_batch_size": 2,
        "num_train_epochs": 1,
        "weight_decay": 0.1,
        "optim": "adamw_torch",
    }
    options |= {"train_sampling_strategy": "sequential", "logging_steps": 1, **changes}
    return make_trainer(folder, callbacks, model=model or Model(), data=data, **options)


def state(trainer):
    """Weights, buffers and what the optimizer keeps."""
    return copy.deepcopy(
        {"model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict()["state"]}
    )


class Watch(TrainerCallback):
    """Notes down the state of the trainer after every step."""

    def __init__(self):
        self.after = {}

    def on_step_end(self, args, state_, control, **kwargs):
        self.after[state_.global_step] = state(self.trainer)


def watched(folder, data, *callbacks, **changes):
    watch = Watch()
    watch.trainer = make(folder, data, *callbacks, watch, **changes)
    watch.trainer.train()
    return watch.trainer, watch.after


class LeaveOut(TrainerCallback):
    """Leaves out the update of one step by hand, in a training without anything bad."""

    def __init__(self, steps):
        self.steps, self.buffers = steps, {}

    def on_step_begin(self, args, state_, control, model=None, **kwargs):
        self.buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def on_pre_optimizer_step(self, args, state_, control, model=None, optimizer=None, **kwargs):
        if state_.global_step + 1 in self.steps:
            optimizer.zero_grad(set_to_none=True)
            for name, buffer in model.named_buffers():
                buffer.copy_(self.buffers[name])


@pytest.mark.parametrize(
    ("optim", "value"),
    [
        ("adamw_torch", math.nan),
        ("adamw_torch", math.inf),
        *((name, math.nan) for name in ("sgd", "adafactor")),
    ],
)
def test_skipping_ends_like_a_run_without_that_update(tmp_path, caplog, value, optim):
    """The step itself leaves weights, optimizer state and running statistics as they were; those
    after it are taken.
    """
    guard = NaNGuardCallback("skip")
    options = {"optim": optim, "optim_args": "momentum=0.9" if optim == "sgd" else None}
    trainer, after = watched(tmp_path, samples(value=value), guard, **options)
    left_out, _ = watched(tmp_path, samples(bad=()), LeaveOut([BAD]), **options)
    assert same_bits(after[BAD - 1], after[BAD])
    assert same_bits(state(trainer), state(left_out))
    assert (guard.skipped, trainer.state.global_step) == ([BAD], 8)
    assert f"Step {BAD}: the loss is " in caplog.text
    assert not math.isfinite(trainer.state.log_history[BAD - 1]["grad_norm"])


def test_nan_guard_changes_nothing_where_nothing_is_bad(tmp_path):
    guarded, _ = watched(tmp_path, samples(bad=()), NaNGuardCallback("skip"))
    plain, _ = watched(tmp_path, samples(bad=()))
    assert same_bits(state(guarded), state(plain))
    assert not any(guarded.model._forward_hooks.values())


def test_stopping_leaves_the_weights_before_the_step_and_a_sound_checkpoint(tmp_path, caplog):
    guard = NaNGuardCallback()
    trainer, after = watched(tmp_path, samples(), guard, save_strategy="steps", save_steps=1)
    assert trainer.state.global_step == BAD
    assert same_bits(state(trainer), after[BAD - 1])
    assert (
        f"Step {BAD}: the loss is nan and gradients are NaN or infinite in first.weight, "
        in caplog.text
    )
    last = str(tmp_path / f"checkpoint-{BAD}")
    again = make(tmp_path, samples(), NaNGuardCallback("skip"))
    again.train(resume_from_checkpoint=last)
    skipping, _ = watched(tmp_path / "whole", samples(), NaNGuardCallback("skip"))
    assert same_bits(state(again), state(skipping)), "it resumes as if that step had been skipped"


def test_nan_guard_raises(tmp_path):
    trainer = make(tmp_path, samples(), NaNGuardCallback("raise"))
    with pytest.raises(
        NaNGuardError, match=rf"Step {BAD}: the loss is nan.*weights are those before"
    ):
        trainer.train()
    assert all(tensor.isfinite().all() for tensor in trainer.model.state_dict().values())
    assert not trainer.model._forward_hooks


def test_nan_guard_leaves_the_model_of_a_training_that_fails(tmp_path):
    """Otherwise its hook would keep each loss of later loops over the model."""

    class Fails(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise RuntimeError("step failed")

    trainer = make(tmp_path, samples(), NaNGuardCallback("skip"), Fails())
    with pytest.raises(RuntimeError, match="step failed"):
        trainer.train()
    assert not trainer.model._forward_hooks


def test_training_after_an_error_leaves_its_optimizer_alone(tmp_path):
    """The guard of a training that raised is used again, with another model."""
    guard = NaNGuardCallback("raise")
    with pytest.raises(NaNGuardError):
        make(tmp_path, samples(), guard).train()
    again, _ = watched(tmp_path, samples(bad=()), guard)
    plain, _ = watched(tmp_path, samples(bad=()))
    assert same_bits(state(again), state(plain))


def test_patience_counts_steps_in_a_row(tmp_path, caplog):
    """Steps 1, 2, 4, 5 and 6 are bad."""
    guard = NaNGuardCallback("skip", patience=3)
    trainer, _ = watched(tmp_path, samples(bad=(0, 2, 6, 8, 10)), guard)
    assert guard.skipped == [1, 2, 4, 5, 6]
    assert trainer.state.global_step == 6
    assert "patience=3" in caplog.text
    endless = NaNGuardCallback("skip", patience=None)
    trainer, _ = watched(tmp_path, samples(bad=range(16)), endless)
    assert endless.skipped == list(range(1, 9))


@pytest.mark.parametrize("checkpoint", [4, 5])
def test_patience_counts_the_steps_before_a_resumption(tmp_path, checkpoint):
    """Steps 4 to 6 are bad: the third in a row ends the training, wherever it was resumed."""
    saving = {"save_strategy": "steps", "save_steps": 1}
    data = samples(bad=(6, 8, 10))
    make(tmp_path, data, NaNGuardCallback("skip", patience=3), **saving).train()
    resumed = make(tmp_path, data, NaNGuardCallback("skip", patience=3), **saving)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{checkpoint}"))
    assert resumed.state.global_step == 6


def test_patience_counts_again_in_another_training(tmp_path):
    guard = NaNGuardCallback("skip", patience=3)
    trainer = make(tmp_path, samples(bad=(12, 14)), guard)
    trainer.train()
    assert guard.skipped == [7, 8]
    trainer.train()
    assert guard.skipped == [7, 8]


def test_names_of_the_gradients_where_clipping_has_not_spread_them(tmp_path, caplog):
    """And a loss that is a number, with gradients that are none: the derivative of a root at
    zero.
    """

    class Root(Model):
        def forward(self, x, labels=None):
            outputs = super().forward(x, labels)
            return {
                **outputs,
                "loss": outputs["loss"] + (self.second.bias * 0 * labels.mean()).abs().sqrt().sum(),
            }

    torch.manual_seed(3)
    guard = NaNGuardCallback()
    watched(tmp_path, samples(bad=()), guard, model=Root(), max_grad_norm=0.0)
    assert guard.skipped == [1]
    assert "gradients are NaN or infinite in second.bias." in caplog.text
    assert "the loss is nan" not in caplog.text


def test_nan_guard_with_a_loss_that_the_model_does_not_return(tmp_path, caplog):
    """Then its gradients tell."""
    guard = NaNGuardCallback("skip")
    loss = lambda outputs, labels, num_items_in_batch=None: functional.mse_loss(
        outputs["logits"], labels
    )
    trainer = make(
        tmp_path, samples(), guard, model=Model(tells_loss=False), label_names=["labels"]
    )
    trainer.compute_loss_func = loss
    trainer.train()
    assert guard.skipped == [BAD]
    assert f"Step {BAD}: gradients are NaN" in caplog.text


class Classifier(nn.Module):
    """The mean of a micro-batch without labels is NaN."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, labels=None):
        logits = self.layer(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize(("accumulation", "skipped"), [(2, []), (1, [3])])
def test_micro_batch_without_labels_does_not_spoil_the_others(tmp_path, accumulation, skipped):
    data = samples(bad=())
    for index, sample in enumerate(data):
        sample["labels"] = torch.tensor(-100 if index in (4, 5) else index % 3)
    guard = NaNGuardCallback("skip")
    options = {"gradient_accumulation_steps": accumulation}
    model = Classifier()
    trainer = make(tmp_path, data, guard, model=copy.deepcopy(model), **options)
    trainer.train()
    assert guard.skipped == skipped
    if accumulation == 2:
        expected = make(tmp_path / "expected", data, model=model, **options)
        expected.train()
        assert same_bits(state(trainer), state(expected))


def test_nan_guard_with_an_optimizer_that_counts_without_gradients(tmp_path):
    """Schedule-free ones keep their counts in the parameter groups."""

    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            self.param_groups[0]["k"] = self.param_groups[0].get("k", 0) + 1
            return super().step(closure)

    model = Model()
    optimizer = Counting(model.parameters(), lr=0.1)
    trainer = make(tmp_path, samples(), NaNGuardCallback("skip"), model=model)
    trainer.optimizer = optimizer
    trainer.train()
    assert optimizer.param_groups[0]["k"] == 7


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_overflows_of_fp16_are_not_counted(tmp_path, monkeypatch):
    """The scale begins far too large, and is found in the first steps; a loss that is NaN still
    counts.
    """
    from lightrainer.lightning_modules.internals import precision

    original_init = precision.LossScaler.__init__
    large = lambda self, device, **options: original_init(
        self, device, **{**options, "init_scale": 2.0**40}
    )
    monkeypatch.setattr(precision.LossScaler, "__init__", large)
    guard = NaNGuardCallback("skip")
    data = samples(bad=(), count=64)
    _, after = watched(tmp_path, data, guard, fp16=True)
    assert same_bits(after[1]["model"]["first.weight"], after[2]["model"]["first.weight"]), (
        "there was no overflow"
    )
    assert not same_bits(after[31]["model"]["first.weight"], after[32]["model"]["first.weight"])
    assert guard.skipped == []
    data[60]["x"] = torch.full((4,), math.nan)
    _, after = watched(tmp_path, data, guard, fp16=True)
    assert guard.skipped == [31]
    assert same_bits(after[30], after[31])


AT_STEP_5 = {"bad": (8, 9), "count": 24}
"""Both samples of step 5 are bad."""


def test_nan_guard_rolls_back_to_the_checkpoint(tmp_path, caplog):
    """As if all steps since then had been left out; their schedule, data and random numbers have
    been used up.
    """
    options = {
        "save_strategy": "steps",
        "save_steps": 3,
        "save_total_limit": 1,
        "lr_scheduler_type": "cosine",
    }
    guard = NaNGuardCallback("go_back")
    trainer, after = watched(tmp_path / "back", samples(**AT_STEP_5), guard, **options)
    _, left_out = watched(
        tmp_path / "left out", samples(bad=(), count=24), LeaveOut([4, 5]), **options
    )
    assert guard.skipped == [5]
    assert trainer.state.global_step == 12
    assert "Step 5 rolls back to the weights and the optimizer of" in caplog.text
    assert not same_bits(after[4], after[3])
    assert same_bits(after[5], left_out[5])
    assert same_bits(after[12], left_out[12])


def test_going_back_needs_a_checkpoint(tmp_path, caplog):
    options = {"save_strategy": "steps", "save_steps": 6}
    _, after = watched(tmp_path, samples(**AT_STEP_5), NaNGuardCallback("go_back"), **options)
    assert same_bits(after[5], after[4])
    assert "Cannot roll back at step 5 (no checkpoint yet)" in caplog.text
    for changes in ({"save_strategy": "no"}, {**options, "save_only_model": True}):
        with pytest.raises(ValueError, match="action='go_back' needs checkpoints"):
            make(tmp_path / "none", samples(), NaNGuardCallback("go_back"), **changes).train()


def test_going_back_only_skips_the_step_if_weights_are_averaged(tmp_path, caplog):
    guard = NaNGuardCallback("go_back")
    callbacks = [guard, EMAWeightAveraging(decay=0.9)]
    trainer = make(tmp_path, samples(**AT_STEP_5), *callbacks, save_strategy="steps", save_steps=3)
    trainer.train()
    assert guard.skipped == [5]
    assert "Cannot roll back at step 5 (a Lightning callback averages the weights)" in caplog.text
