"""An evaluation in which a training was interrupted: whoever goes on makes it anew, to the same numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...lightning_modules.common.seeding import capture_rng_state, restore_rng_state
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.data.rng_discovery import own_states, restore_own, what_draws

if TYPE_CHECKING:
    from ..trainer.trainer_module import TrainerModule


class Before(NamedTuple):
    """What an evaluation changes."""

    generators: dict[str, Any]
    own: list[dict[str, Any]]
    """Of the generators of collator and data."""
    logs: int
    synchronised: bool
    """Whether DistributedDataParallel begins it with the buffers of the first process."""


class InterruptedEvaluation:
    """Remembers how things were before an evaluation, and brings them back for it.

    Args:
        run: the training.
    """

    run = WeakAttribute["TrainerModule"]()

    def __init__(self, run: TrainerModule) -> None:
        self.run = run
        self.before: Before | None = None
        self.owed: dict[str, Any] | None = None
        """The `state` in the checkpoint that the training goes on from."""

    @contextlib.contextmanager
    def possible(self) -> Iterator[None]:
        """An evaluation of the training: what is saved in the middle of it is saved as before it."""
        state, ddp = self.run.facade.state, self.run.strategy.ddp
        synchronised = ddp is not None and ddp.require_forward_param_sync
        self.before = Before(
            capture_rng_state(self._several), own_states(*self._draws), len(state.log_history), synchronised
        )
        try:
            yield
        finally:
            self.before = None

    @contextlib.contextmanager
    def generators_before(self) -> Iterator[None]:
        """Have the random generators as they were before the evaluation, if this is in the middle of one."""
        if self.before is None:
            yield
            return
        present, own = capture_rng_state(self._several), own_states(*self._draws)
        restore_rng_state(self.before.generators, self._several)
        restore_own(self.before.own, *self._draws)
        try:
            yield
        finally:
            restore_rng_state(present, self._several)
            restore_own(own, *self._draws)

    def state(self) -> dict[str, Any] | None:
        """What `make_up` needs, where the training is saved in the middle of an evaluation; else None.

        One at the end of an epoch is made by whoever goes on, like everything that is due there.
        """
        if self.before is None or self.run.epoch_ended:
            return None
        apart = self._several and self.run.strategy.spread is None  # every process has running statistics
        buffers = {name: buffer.cpu() for name, buffer in self._buffers()} if apart else {}
        return {"logs": self.before.logs, "synchronised": self.before.synchronised, "buffers": buffers}

    def make_up(self) -> None:
        """Make the evaluation that is owed, if one is."""
        run, owed = self.run, self.owed
        facade, self.owed = run.facade, None
        if owed is None:
            return
        del facade.state.log_history[owed["logs"] :]
        with torch.no_grad():
            for name, buffer in self._buffers():
                if name in owed["buffers"]:
                    buffer.copy_(owed["buffers"][name])
        if run.strategy.ddp is not None:
            run.strategy.ddp.require_forward_param_sync = owed["synchronised"]
        with self.possible():
            metrics = facade._evaluate(run.trial, run.ignore_keys)
        facade._determine_best_metric(metrics=metrics, trial=run.trial)
        if run.stopping:
            run.stop_before_step()

    @property
    def _draws(self) -> tuple[Any, ...]:
        return what_draws(self.run.windows.loader)

    @property
    def _several(self) -> bool:
        return self.run.facade.args.world_size > 1

    def _buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self.run.facade.model.named_buffers()
