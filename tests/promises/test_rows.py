"""Other promises of README and differences.md, each for kinds of user code that no other test
shows it for.
"""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import default_collate

from helpers.promises.class_walk import ARGUMENTS, GradientReader, trained, whole_batch
from helpers.promises.small_samples import SAMPLES
from helpers.promises.user_code import KINDS, Kind, Stream, Tagger, own_loss, samples_for
from lightrainer import Trainer, TrainerCallback

USUAL_CODE = (
    "head, mean",
    "head, by items",
    "compute_loss, ignores items",
    "compute_loss_func, mean",
    "training_step, accelerator.backward",
    "training_step, loss.backward",
    "adapter, mean",
    "own module",
    "own module with kwargs",
    "stream",
    "bf16",
)
"""Names of `KINDS`."""


def made(
    kind: Kind, folder: Path, callbacks: list[Any] | None = None, copies: int = 1, **arguments: Any
) -> Trainer:
    """Return a Trainer of user code, for steps of two micro-batches of two samples; `copies`
    make an epoch longer.
    """
    samples = samples_for(kind.model(), uneven=kind.uneven) * copies
    settings = {
        **ARGUMENTS,
        "per_device_train_batch_size": 2,
        **kind.arguments,
        "gradient_accumulation_steps": 2,
        **arguments,
    }
    return kind.trainer(
        kind.model(),
        kind.args_class(str(folder), **settings),
        train_dataset=Stream(samples) if kind.stream else samples,
        data_collator=default_collate,
        callbacks=callbacks,
        **kind.parameters,
    )


class Questions(TorchDispatchMode):
    """Counts `.item()`, `float()`, `bool()` and `if` of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


class QuestionsByStep(TrainerCallback):
    """Notes how often numbers were asked for up to the end of each step."""

    def __init__(self, counter: Questions) -> None:
        self.counter = counter
        self.counts: list[int] = []

    def on_step_end(self, args, state, control, **kwargs):
        self.counts.append(self.counter.count)


def questions_in_three_steps(kind: Kind, folder: Path) -> int:
    """Return how often numbers are asked for in three steps within the first epoch, between two
    logs.
    """
    with Questions() as counter:
        steps = QuestionsByStep(counter)
        made(kind, folder, [steps], copies=8, max_steps=5, logging_steps=100).train()
    return steps.counts[4] - steps.counts[1]


def questions_of_model(kind: Kind) -> int:
    """Return how often a model itself asks in a forward and backward pass, as for padding in its
    masks.
    """
    model = kind.model()
    with Questions() as counter:
        own_loss(model, default_collate(samples_for(model)[:2])).backward()
    return counter.count


class Asks(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        assert loss.item() > 0
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize("name", USUAL_CODE)
def test_steps_between_two_logs_ask_nothing_of_the_device(tmp_path, name):
    """Three steps are six micro-batches."""
    kind = KINDS[name]
    assert questions_in_three_steps(kind, tmp_path) == 6 * questions_of_model(kind)


def test_loss_that_is_read_waits_for_the_device(tmp_path):
    """Control."""
    kind = Kind(model=Tagger, trainer=Asks)
    assert questions_in_three_steps(kind, tmp_path) == 6


def short_of_memory(make: Any) -> Any:
    """Return a function that makes a model which four samples at once, or more, are too many
    for.
    """

    def make_short() -> nn.Module:
        model = make()

        def check(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            if module.training and len(kwargs["input_ids"]) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

        model.register_forward_pre_hook(check, with_kwargs=True)
        return model

    return make_short


OUT_OF_MEMORY = (
    "head, mean",
    "head, by items",
    "adapter, mean",
    "own module",
    "compute_loss, ignores items",
    "stream",
)
"""Names of `KINDS`."""


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("name", OUT_OF_MEMORY)
def test_smaller_batches_keep_the_step(tmp_path, monkeypatch, name, keeps):
    """A batch of 8 that is too large for the memory is 4 batches of 2; without the switch it is
    another step.
    """
    kind = KINDS[name]
    monkeypatch.setattr(Trainer, "keep_effective_batch_size", keeps)
    samples = samples_for(kind.model())
    step = trained(
        short_of_memory(kind.model)(),
        Stream(samples) if kind.stream else samples,
        SAMPLES,
        tmp_path,
        trainer_class=kind.trainer,
        arguments={"auto_find_batch_size": True},
    )
    difference = step.difference(whole_batch(kind.model(), samples, own_loss))
    assert (difference < 1e-5) == keeps


class NotANumber(TrainerCallback):
    """Makes the weights NaN before the third step."""

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == 2:
            next(iter(model.parameters())).data.fill_(float("nan"))


@pytest.mark.parametrize("name", USUAL_CODE)
@pytest.mark.parametrize("is_broken", [True, False])
def test_losses_that_are_not_numbers_are_reported(tmp_path, caplog, name, is_broken):
    callbacks = [NotANumber()] if is_broken else []
    trainer = made(
        KINDS[name], tmp_path, callbacks, max_steps=4, num_train_epochs=4, logging_steps=4
    )
    for parameter in trainer.model.parameters():
        parameter.requires_grad_(True)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    reported = [
        record.getMessage() for record in caplog.records if "NaN or infinite" in record.getMessage()
    ]
    assert len(reported) == 2 * is_broken, "in the next log, and at the end"


class TiedTagger(Tagger):
    """A plain module of which two layers share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.tied = nn.Embedding(*self.embedding.weight.shape)
        self.tied.weight = self.embedding.weight


class SavesMore(Trainer):
    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict)
        Path(output_dir or self.args.output_dir, "notes.txt").write_text("as the script has it")


RESUMED_CODE = (
    "head, mean",
    "head, by items",
    "adapter, mean",
    "compute_loss, ignores items",
    "stream",
    "bf16",
    "fp16",
)
"""Names of `KINDS`."""

RESUMED = {name: KINDS[name] for name in RESUMED_CODE}
RESUMED["own module with tied weights"] = Kind(model=TiedTagger)
RESUMED["override of _save"] = Kind(trainer=SavesMore)
SAVING = {
    "save_strategy": "steps",
    "save_steps": 1,
    "max_steps": 4,
    "optim": "adamw_torch",
    "save_only_model": False,
}


class FirstStep(TrainerCallback):
    """Notes the step after which a training begins."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.step = state.global_step


def cut_newest(folder: Path) -> None:
    """Leave half of the weights of the newest checkpoint."""
    checkpoint = folder / "checkpoint-3"
    weights = next(iter(sorted(checkpoint.glob("*.safetensors"))))
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {
        name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()
    }


@pytest.mark.parametrize("name", RESUMED)
def test_training_with_a_damaged_newest_checkpoint_ends_the_same(tmp_path, caplog, name):
    """It resumes from the one before, names the damaged one, and ends with the same bits; an
    intact one is taken.
    """
    kind = RESUMED[name]
    folder = tmp_path / "out"
    whole = made(kind, folder, **SAVING)
    whole.train()
    expected = weights_of(whole)

    for is_damaged in (False, True):
        shutil.rmtree(folder / "checkpoint-4")
        if is_damaged:
            cut_newest(folder)
        first = FirstStep()
        resumed = made(kind, folder, [first], **SAVING)
        with caplog.at_level(logging.WARNING):
            resumed.train(resume_from_checkpoint=True)

        assert first.step == (2 if is_damaged else 3)
        assert ("checkpoint-3" in caplog.text) == is_damaged
        assert whole.state.global_step == resumed.state.global_step == 4
        actual = weights_of(resumed)
        assert expected.keys() == actual.keys()
        for parameter, value in expected.items():
            assert torch.equal(value, actual[parameter]), parameter


UNSCALED = "training_step, loss.backward"
HALVES = [name for name in USUAL_CODE if name not in (UNSCALED, "bf16")]


class HalfSeen:
    """Notes the precisions of the results of linear layers."""

    def __init__(self, model: nn.Module):
        self.dtypes: set[torch.dtype] = set()
        for module in model.modules():
            if type(module) is nn.Linear:
                module.register_forward_hook(
                    lambda module, args, output: self.dtypes.add(output.dtype)
                )


@pytest.mark.parametrize("arguments", [{"fp16": True}, {}], ids=["fp16", "float32"])
@pytest.mark.parametrize("name", HALVES)
def test_fp16_on_the_cpu_is_scaled(tmp_path, name, arguments):
    """Layers compute in float16, and the gradients, which were scaled, are those of the whole
    batch.
    """
    kind = KINDS[name]
    reader = GradientReader()
    trainer = made(kind, tmp_path, [reader], gradient_accumulation_steps=4, **arguments)
    recorder = HalfSeen(trainer.model)
    trainer.train()
    assert (torch.float16 in recorder.dtypes) == ("fp16" in arguments)
    assert (trainer.accelerator.scaler is not None) == ("fp16" in arguments)
    expected = whole_batch(kind.model(), samples_for(kind.model(), uneven=kind.uneven), kind.loss)
    difference = float((reader.gradient - expected.gradient).norm() / expected.gradient.norm())
    assert difference < 2e-2
    assert (difference > 1e-5) == ("fp16" in arguments)


def test_fp16_without_the_accelerator_is_an_error(tmp_path):
    """As in transformers: only `accelerator.backward` scales a loss, and nothing trains with one
    that is not scaled.
    """
    with pytest.raises(AssertionError, match=r"scaler\.scale"):
        made(KINDS[UNSCALED], tmp_path, fp16=True).train()
