"""Evaluations that are interrupted: the resumed training repeats them with the same results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.data.stateful_parts import drawing_parts, part_states, restore_parts
from .generators import capture_generators, restore_generators

if TYPE_CHECKING:
    from .. import TrainingRun


class Before(NamedTuple):
    """State before an evaluation, as far as an evaluation changes it."""

    generators: dict[str, Any]
    data_states: list[dict[str, Any]]
    """Of the collator and the data."""
    logs: int


class InterruptedEvaluation:
    """Capture the state before an evaluation, and restore it to repeat the evaluation.

    Args:
        run: the training.
    """

    run = WeakAttribute["TrainingRun"]()

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        self.before: Before | None = None
        self.owed: dict[str, Any] | None = None
        """The `state` of the checkpoint to resume from, if it was saved in an evaluation."""

    @contextlib.contextmanager
    def during_evaluation(self) -> Iterator[None]:
        """Capture the state before an evaluation, for checkpoints saved during it."""
        logs = len(self.run.trainer.state.log_history)
        generators = capture_generators(self.run.trainer)
        self.before = Before(generators, part_states(*self._drawing_parts), logs)
        try:
            yield
        finally:
            self.before = None

    @contextlib.contextmanager
    def generators_before(self) -> Iterator[None]:
        """Give generators their states before the current evaluation, in the block."""
        if self.before is None:
            yield
            return
        trainer = self.run.trainer
        generators = capture_generators(trainer)
        data_states = part_states(*self._drawing_parts)
        restore_generators(trainer, self.before.generators)
        restore_parts(self.before.data_states, *self._drawing_parts)
        try:
            yield
        finally:
            restore_generators(trainer, generators)
            restore_parts(data_states, *self._drawing_parts)

    def state(self) -> dict[str, Any] | None:
        """Return what `repeat` needs, or None outside of an evaluation.

        An evaluation at the end of an epoch needs none: the resumed training ends the epoch again.
        """
        if self.before is None or self.run.epoch.is_over:
            return None

        # Every process has its own running statistics.
        buffers: dict[str, torch.Tensor] = {}
        if self._is_distributed and self.run.strategy.sharded_model is None:
            buffers = {name: buffer.cpu() for name, buffer in self._buffers()}
        return {"logs": self.before.logs, "buffers": buffers}

    def repeat(self, evaluate: Callable[[], None]) -> None:
        """Repeat the evaluation that the checkpoint was saved in, if any."""
        run = self.run
        trainer = run.trainer
        owed = self.owed
        self.owed = None
        if owed is None:
            return

        # Nothing of the evaluation is left in the logs and the statistics of the model.
        del trainer.state.log_history[owed["logs"] :]
        with torch.no_grad():
            for name, buffer in self._buffers():
                if name in owed["buffers"]:
                    buffer.copy_(owed["buffers"][name])
        with self.during_evaluation():
            evaluate()
        if run.stopping:
            run.stop_before_step()

    @property
    def _drawing_parts(self) -> tuple[Any, ...]:
        """Data and collators that may draw random numbers."""
        return *drawing_parts(self.run.windows.loader), self.run.trainer.eval_data_collator

    @property
    def _is_distributed(self) -> bool:
        return self.run.trainer.args.world_size > 1

    def _buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self.run.trainer.model.named_buffers()
