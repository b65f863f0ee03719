"""Measure time, steps, samples and tokens of a training."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .state import TrainerState

if TYPE_CHECKING:
    from ..facade import TrainingArguments


class SpeedMeter:
    """Time, steps, samples and tokens between `start` and `measure`, over all processes.

    Never synchronizes a device. The number of samples follows from the fraction of the epoch that
    was done if the size of the data is known, otherwise from the batch size.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.steps = 0
        self.samples = 0.0
        self.tokens = 0

        # The clock and the counts of the state at the start.
        self._start_time: float | None = None
        self._start_step = 0
        self._start_epoch = 0.0
        self._start_tokens = 0

    def start(self, state: TrainerState) -> None:
        """Count from here on."""
        self._start_time = time.perf_counter()
        self._start_step = state.global_step
        self._start_epoch = state.epoch or 0.0
        self._start_tokens = state.num_input_tokens_seen

    def measure(
        self, args: TrainingArguments, state: TrainerState, train_dataloader: object = None
    ) -> bool:
        """Store the figures since the start, start again, and return whether any step was done.

        Args:
            args: has `gradient_accumulation_steps` and `world_size`.
            state: the current one.
            train_dataloader: the training data, if known.
        """
        self.seconds = 0.0
        if self._start_time is not None:
            self.seconds = time.perf_counter() - self._start_time
        self.steps = state.global_step - self._start_step
        self.tokens = state.num_input_tokens_seen - self._start_tokens
        epochs = (state.epoch or 0.0) - self._start_epoch
        self.start(state)

        # Batches at the end of an epoch may be smaller, so the fraction of the epoch comes first.
        micro_batch_of_all = (state.train_batch_size or 0) * getattr(args, "world_size", 1)
        epoch_size = _samples_in_epoch(train_dataloader, micro_batch_of_all)
        if epoch_size and epochs > 0:
            self.samples = epochs * epoch_size
        else:
            micro_batches = self.steps * getattr(args, "gradient_accumulation_steps", 1)
            self.samples = float(micro_batches * micro_batch_of_all)
        return self.seconds > 0 and self.steps > 0


def _samples_in_epoch(train_dataloader: object, micro_batch_of_all: int) -> int | None:
    """Return the samples in one pass over the data, of all processes; None if unknown.

    Args:
        train_dataloader: the data of this process.
        micro_batch_of_all: samples in a micro-batch of all processes; 0 if unknown.
    """
    batches = length_or_none(train_dataloader)
    samples = length_or_none(getattr(train_dataloader, "dataset", None))
    if not batches or not samples:
        return None
    if not micro_batch_of_all:
        return samples
    return min(samples, batches * micro_batch_of_all)


def length_or_none(collection: object) -> int | None:
    """Return the `len` of an object; None if it has none."""
    try:
        return len(collection)  # pyright: ignore[reportArgumentType] - raises what is caught here
    except (TypeError, AttributeError, NotImplementedError):
        return None
