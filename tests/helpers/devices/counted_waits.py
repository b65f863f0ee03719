"""Trainings and evaluations in which the host's waits for the device are counted, of either
library.

On a pretended device each wait is counted with its line; on a real one torch warns of each.
"""

import contextlib
import io
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torchmetrics
from torch import nn
from torch.nn import functional
from torch.utils.data import IterableDataset

from helpers.devices import pretended_cuda
from lightrainer import BatchMetrics

TOKENS = 20
PADDING = 0
IGNORED = -100


class Words(nn.Module):
    """Predicts the class of each token, with the loss of transformers' models."""

    main_input_name = "input_ids"
    config = None

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(8, TOKENS)

    def get_input_embeddings(self) -> nn.Module:
        """Return the layer to which NEFTune adds noise."""
        return self.embedding

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, torch.Tensor]:
        """Return loss and logits of shape (batch, length, tokens)."""
        hidden = self.norm(self.embedding(input_ids).transpose(1, 2)).transpose(1, 2)
        logits = self.head(self.dropout(hidden))
        if labels is None:
            return {"logits": logits}
        return {
            "loss": loss_of(logits, labels, kwargs.get("num_items_in_batch")),
            "logits": logits,
        }


def loss_of(logits: torch.Tensor, labels: torch.Tensor, items: Any) -> torch.Tensor:
    """Return the mean over the labels of the step, or of the batch where these were not counted."""
    pairs = logits.flatten(0, 1), labels.flatten()
    if items is None:
        return functional.cross_entropy(*pairs, ignore_index=IGNORED)
    return functional.cross_entropy(*pairs, ignore_index=IGNORED, reduction="sum") / items


def own_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """Compute a loss, as `compute_loss_func`."""
    return loss_of(outputs["logits"], labels, num_items_in_batch)


def sentences(count: int) -> list[dict[str, torch.Tensor]]:
    """Return samples of 3 to 8 tokens."""
    generator = torch.Generator().manual_seed(0)
    samples = []
    for index in range(count):
        ids = torch.randint(1, TOKENS, (3 + index % 6,), generator=generator)
        samples.append({"input_ids": ids, "labels": ids})
    return samples


class Unsized(IterableDataset):
    """Sentences without their number."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter(sentences(200))


def padded(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Collate samples to a batch, as long as the longest of them."""
    ids = nn.utils.rnn.pad_sequence([sample["input_ids"] for sample in samples], True, PADDING)
    labels = nn.utils.rnn.pad_sequence([sample["labels"] for sample in samples], True, IGNORED)
    return {"input_ids": ids, "attention_mask": (ids != PADDING).long(), "labels": labels}


def computing_loss(base: type) -> type:
    """Derive a Trainer with its own loss, which records a value where the library can."""

    class Computing(base):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any
        ) -> Any:
            outputs = model(**inputs)
            loss = loss_of(outputs["logits"], inputs["labels"], kwargs.get("num_items_in_batch"))
            if hasattr(self, "record"):
                self.record(
                    accuracy=(outputs["logits"].argmax(-1) == inputs["labels"]).float().mean()
                )
            return (loss, outputs) if return_outputs else loss

    return Computing


def reading_loss(base: type) -> type:
    """Derive a Trainer that reads each loss: the control, which has to be counted."""

    class Reading(base):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            loss.item()
            return loss

    return Reading


def stepping(base: type) -> type:
    """Derive a Trainer that runs the backward pass itself, as scripts for older versions do."""

    class Stepping(base):
        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            model.train()
            loss = self.compute_loss(model, self._prepare_inputs(inputs))
            loss = loss / self.args.gradient_accumulation_steps
            self.accelerator.backward(loss)
            return loss.detach()

    return Stepping


@dataclass(frozen=True)
class Setting:
    """What differs from the defaults in a training.

    Attributes:
        arguments: of `TrainingArguments`.
        callbacks: names of callbacks of lightrainer, which the reference does not have.
        parts: of the Trainer.
        subclass: derives a Trainer from that of a library.
        waits: in a step, or for a batch of an evaluation.
        is_only_here: the reference does not have this.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    callbacks: tuple[str, ...] = ()
    parts: dict[str, Any] = field(default_factory=dict)
    subclass: Callable[[type], type] = lambda base: base
    waits: int = 0
    is_only_here: bool = False


ACCUMULATES = {"gradient_accumulation_steps": 2}
MEASURES = ("ThroughputCallback", "MemoryCallback", "GradientNormCallback", "RunReportCallback")

SETTINGS = {
    "defaults": Setting(),
    "two micro-batches a step": Setting(ACCUMULATES),
    "no clipping": Setting({"max_grad_norm": 0.0}),
    "bf16": Setting({"bf16": True}),
    "fp16": Setting({"fp16": True}),
    "fp16, optimizer not fused": Setting({"fp16": True, "optim": "adamw_torch"}, waits=1),
    "NaN and infinite losses shown": Setting({"logging_nan_inf_filter": False}),
    "tokens counted": Setting({"include_num_input_tokens_seen": "all"}),
    "tokens counted but padding": Setting({"include_num_input_tokens_seen": "non_padding"}),
    "items of each process": Setting({**ACCUMULATES, "average_tokens_across_devices": False}),
    "label smoothing": Setting({**ACCUMULATES, "label_smoothing_factor": 0.1}),
    "loss function": Setting(ACCUMULATES, parts={"compute_loss_func": own_loss}),
    "override of compute_loss, values recorded": Setting(ACCUMULATES, subclass=computing_loss),
    "override of training_step": Setting(ACCUMULATES, subclass=stepping),
    "noise on embeddings": Setting({"neftune_noise_alpha": 5.0}),
    "two workers": Setting({"dataloader_num_workers": 2}),
    "stream": Setting(parts={"train_dataset": Unsized()}),
    "grouped by length": Setting({"train_sampling_strategy": "group_by_length"}),
    "copies asked not to wait (`non_blocking`)": Setting(
        {"accelerator_config": {"non_blocking": True}}
    ),
    "batches of 64 tokens": Setting(
        {"train_sampling_strategy": "token_budget", "max_tokens_per_batch": 64}, is_only_here=True
    ),
    "activation checkpointing": Setting({"activation_checkpointing": True}, is_only_here=True),
    "EMA": Setting(callbacks=("EMACallback",), is_only_here=True),
    "throughput, memory, gradient norms, report": Setting(callbacks=MEASURES, is_only_here=True),
    "NaN guard": Setting(callbacks=("NaNGuardCallback",), waits=1, is_only_here=True),
}
"""Of trainings."""

CONTROL = Setting(subclass=reading_loss, waits=1)


def number_of_samples(prediction: Any, compute_result: bool = True) -> dict[str, int]:
    """Compute a metric, over a batch or over all."""
    return {"samples": len(prediction.predictions)}


def metrics_of_two_kinds() -> Any:
    """Return metrics that need the labels that count, and the second one probabilities, too."""
    options: dict[str, Any] = {"num_classes": TOKENS, "validate_args": False}
    return BatchMetrics(
        {
            "accuracy": torchmetrics.Accuracy("multiclass", **options),
            "calibration": torchmetrics.CalibrationError("multiclass", **options),
        }
    )


METRICS = {"compute_metrics": number_of_samples}

EVALUATIONS = {
    "loss": Setting(),
    "predictions": Setting(parts=METRICS, waits=1),
    "predictions, bf16": Setting({"bf16": True}, parts=METRICS, waits=1),
    "predictions, a list of batches": Setting(
        {"eval_do_concat_batches": False}, parts=METRICS, waits=1
    ),
    "predictions, inputs and losses": Setting(
        {"include_for_metrics": ["inputs", "loss"]}, parts=METRICS, waits=1
    ),
    "predictions, moved at each batch": Setting(
        {"eval_accumulation_steps": 1}, parts=METRICS, waits=1
    ),
    "predictions, gathered as objects": Setting(
        {"eval_use_gather_object": True}, parts=METRICS, waits=1
    ),
    "metrics of each batch": Setting({"batch_eval_metrics": True}, parts=METRICS),
    "torchmetrics": Setting(
        parts={"compute_metrics": metrics_of_two_kinds()}, waits=1, is_only_here=True
    ),
}
"""Of evaluations."""


@contextlib.contextmanager
def counting() -> Iterator[Counter[tuple[str, str]]]:
    """Count the waits in the block, by operation and line; the counter is filled at its end."""
    waits: Counter[tuple[str, str]] = Counter()
    device = pretended_cuda.pretended()
    if device is not None:
        before = device.waits.copy()
        yield waits
        waits.update(device.waits - before)
        return

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for warning in caught:
        if "called a synchronizing" in str(warning.message):
            waits["synchronisation", f"{Path(warning.filename).name}:{warning.lineno}"] += 1


def waits_between_logs(api: ModuleType, setting: Setting, steps: int) -> Counter[tuple[str, str]]:
    """Train, and return the waits of that many steps in the middle of the training, far from any
    log.
    """
    block = contextlib.ExitStack()
    waits: Counter[tuple[str, str]] = Counter()

    class CountsInTheMiddle(api.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            nonlocal waits
            if state.global_step == 2:
                waits = block.enter_context(counting())
            if state.global_step == 2 + steps:
                block.close()

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = trainer_of(api, folder, setting, max_steps=steps + 4)
        trainer.add_callback(CountsInTheMiddle())
        trainer.train()
    return waits


def waits_of_batches(
    api: ModuleType, setting: Setting, work: str, batches: int
) -> Counter[tuple[str, str]]:
    """Return the waits that `evaluate` or `predict` has for each of that many batches.

    They may read all batches at their end, so what twice as many batches take is compared.
    """
    counts = []
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        for length in (batches, 2 * batches):
            trainer = trainer_of(api, folder, setting)
            with counting() as waits:
                getattr(trainer, work)(sentences(4 * length))
            counts.append(waits)
    return counts[1] - counts[0]


def trainer_of(api: ModuleType, folder: str, setting: Setting, **arguments: Any) -> Any:
    """Return a Trainer of a library on the device, quiet, with that setting."""
    options: dict[str, Any] = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no"}
    options |= {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "logging_steps": 1_000_000,
    }
    parts: dict[str, Any] = {
        "train_dataset": sentences(200),
        "data_collator": padded,
        **setting.parts,
    }
    return setting.subclass(api.Trainer)(
        model=Words(),
        args=api.TrainingArguments(folder, **{**options, **setting.arguments, **arguments}),
        callbacks=[getattr(api, name)() for name in setting.callbacks],
        **parts,
    )
