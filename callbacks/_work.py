"""Measure steps, samples and tokens between two points of a training from its state."""

from __future__ import annotations

import math
import time
from typing import Any

from .state import TrainerState


class Stretch:
    """Time, steps, samples and tokens since `begin`, over all processes.

    Never synchronizes a device. Samples follow from the part of the epoch that was done, where the
    size of the data is known, and otherwise from the size of a batch.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._steps = 0
        self._epochs = 0.0
        self._tokens = 0
        self.seconds = 0.0
        self.steps = 0
        self.samples = 0.0
        self.tokens = 0

    def begin(self, state: TrainerState) -> None:
        """Count from here on."""
        self._since = time.perf_counter()
        self._steps = state.global_step
        self._epochs = state.epoch or 0.0
        self._tokens = state.num_input_tokens_seen

    def end(self, args: Any, state: TrainerState, loader: Any = None) -> bool:
        """Store the figures since `begin`, start again, and return whether any step was done.

        Args:
            args: `gradient_accumulation_steps` and `world_size`.
            state: the present one.
            loader: the training data, if known.
        """
        self.seconds = 0.0 if self._since is None else time.perf_counter() - self._since
        self.steps = state.global_step - self._steps
        self.tokens = state.num_input_tokens_seen - self._tokens
        epochs = (state.epoch or 0.0) - self._epochs
        self.begin(state)
        at_once = (state.train_batch_size or 0) * getattr(args, "world_size", 1)
        in_epoch = _samples_in_epoch(loader, at_once)
        by_batches = self.steps * at_once * getattr(args, "gradient_accumulation_steps", 1)
        self.samples = epochs * in_epoch if in_epoch and epochs > 0 else float(by_batches)
        return self.seconds > 0 and self.steps > 0


def _samples_in_epoch(loader: Any, at_once: int) -> int | None:
    """Return the samples in one pass over the data; None where its size is unknown."""
    batches = length(loader)
    samples = length(getattr(loader, "dataset", None))
    if not batches or not samples:
        return None
    return min(samples, batches * at_once) if at_once else samples


def length(sized: Any) -> int | None:
    """Return the `len` of an object; None where it has none."""
    try:
        return len(sized)
    except (TypeError, AttributeError, NotImplementedError):
        return None


def is_compiled(args: Any, model: Any) -> bool:
    """Return whether the model is compiled in place, by `torch_compile` or `model.compile()`:
    hooks are traced then.
    """
    return (
        bool(getattr(args, "torch_compile", False))
        or getattr(model, "_compiled_call_impl", None) is not None
    )


def clock(seconds: float) -> str:
    """Return seconds as `1:02:03` or `02:03`; a question mark where they are unknown."""
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
