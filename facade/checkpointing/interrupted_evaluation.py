"""Repeat an evaluation during which the checkpoint to resume from was written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.data.stateful_parts import drawing_parts, part_states, restore_parts
from ..evaluation.sets import evaluation_parts
from .generators import capture_generators, restore_generators

if TYPE_CHECKING:
    from .. import TrainingRun


class StateBeforeEvaluation(NamedTuple):
    """State before an evaluation, as far as the evaluation changes it."""

    generators: dict[str, Any]
    data_states: list[dict[str, Any]]
    """States of the collator and the data."""
    logs: int
    worker_states: dict[str, Any]
    """States of the workers of evaluation loaders."""


class InterruptedEvaluation:
    """Capture the state before an evaluation, and restore it to repeat the evaluation.

    Args:
        run: the training.
    """

    run = WeakAttribute["TrainingRun"]()

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        self.before: StateBeforeEvaluation | None = None
        self.owed: dict[str, Any] | None = None
        """The `state` of the checkpoint to resume from, if it was written during an evaluation."""

    @contextlib.contextmanager
    def during_evaluation(self, loaders: Mapping[str, Any]) -> Iterator[None]:
        """Capture the state before an evaluation, for checkpoints written during it.

        Args:
            loaders: the loaders of evaluations, by name.
        """
        logs = len(self.run.trainer.state.log_history)
        generators = capture_generators(self.run.trainer)
        data_states = part_states(*self._drawing_parts)
        worker_states = self.worker_states(loaders)
        self.before = StateBeforeEvaluation(generators, data_states, logs, worker_states)
        try:
            yield
        finally:
            self.before = None

    def worker_states(self, loaders: Mapping[str, Any]) -> dict[str, Any]:
        """Return the states of persistent workers; during an evaluation, those from before it.

        Args:
            loaders: the loaders of evaluations, by name.
        """
        if self.before is not None:
            return self.before.worker_states
        states: dict[str, Any] = {}
        for key, loader in loaders.items():
            states[key] = getattr(loader, "worker_states", None)
        return states

    @contextlib.contextmanager
    def generators_before(self) -> Iterator[None]:
        """Restore the RNG states from before the current evaluation within the `with` block."""
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
        """Return the state that `repeat` needs, or None outside of an evaluation.

        It is also None for an evaluation at the end of an epoch, because the resumed training
        repeats the end of the epoch.
        """
        if self.before is None or self.run.epoch.is_over:
            return None
        return {"logs": self.before.logs}

    def repeat(self, evaluate: Callable[[], None], loaders: Mapping[str, Any]) -> None:
        """Repeat the evaluation during which the checkpoint was written, if there is one.

        Args:
            evaluate: runs the evaluation.
            loaders: the loaders of evaluations, by name.
        """
        run = self.run
        trainer = run.trainer
        owed = self.owed
        self.owed = None
        if owed is None:
            return

        # Remove the log entries of the interrupted evaluation.
        del trainer.state.log_history[owed["logs"] :]
        with self.during_evaluation(loaders):
            evaluate()

        # A callback may stop the training because of this evaluation.
        if run.stopping:
            run.stop_before_step()

    @property
    def _drawing_parts(self) -> tuple[object, ...]:
        """Return the data and collators that may draw random numbers."""
        return *drawing_parts(self.run.windows.loader), *evaluation_parts(self.run.trainer)
