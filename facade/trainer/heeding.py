"""Which signals a training listens to, and how its worker processes know."""

from __future__ import annotations

import signal
from typing import Any

import torch


class SignalChoice:
    """`checkpoint_on_signals`, and `enable_jit_checkpoint`."""

    args: Any
    checkpoint_on_signals: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT)
    """These end a training at the next step with a checkpoint to go on from; an empty tuple turns it off.

    With `save_strategy="no"` nobody wants checkpoints, and signals are the script's own, unless
    `enable_jit_checkpoint` asks for one; it always listens to SIGTERM. Signals that the process ignores stay ignored.
    """
    _listens: torch.Tensor | None = None

    @property
    def _handled_signals(self) -> tuple[int, ...]:
        given = tuple(self.checkpoint_on_signals)
        if self.args.enable_jit_checkpoint:
            return tuple(dict.fromkeys((signal.SIGTERM, *given)))
        return () if self.args.save_strategy == "no" else given

    def _shared_flag(self) -> torch.Tensor:
        """Whether the training listens now, in memory that worker processes see."""
        if self._listens is None:
            self._listens = torch.zeros(1, dtype=torch.bool).share_memory_()
        return self._listens
