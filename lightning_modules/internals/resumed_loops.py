"""Let Lightning's fit loop go on from a place that `loop_states.settle` has written into its counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .lightning_import import Trainer
from .loop_states import Place

__all__ = ["begin_epoch", "begin_reading_anew", "go_on_inside", "read_ahead"]


def begin_reading_anew(trainer: Trainer, read: list[Any] | None = None) -> None:
    """Begin the iteration of the train loaders once more: Lightning did before it called a hook, and may have read.

    Args:
        trainer: is about to train.
        read: `read_ahead` of an interrupted training. The loaders go on after it, and are not asked before it is used.
    """
    fetcher: Any = trainer.fit_loop._data_fetcher
    if fetcher is None:
        return
    if read is None:
        iter(fetcher)
        return
    fetcher.iterator = iter(fetcher.combined_loader)
    fetcher.reset()
    fetcher.batches = read


def read_ahead(trainer: Trainer) -> list[Any]:
    """Return what Lightning has read and not used: a batch of loaders without a length, with its two numbers."""
    return list(getattr(trainer.fit_loop._data_fetcher, "batches", ()))


def go_on_inside(trainer: Trainer, place: Place, before_reading: Callable[[], None]) -> None:
    """Let the fit loop begin in the middle of an epoch: with what follows the last batch, or with the next one.

    Args:
        trainer: its loops are settled at the place, and are about to run.
        place: some batches of the epoch are done.
        before_reading: called before the next batch of this epoch is read.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    usual = loop.advance

    def finish_batch(fetcher: Any) -> None:
        loop.restarting = False
        del loop.advance
        if not place.at_end:
            loop.advance = read_on

    def read_on(fetcher: Any) -> None:
        loop.restarting = False
        del loop.advance
        before_reading()
        usual(fetcher)

    trainer.fit_loop._restarting = False  # else no plateau schedule is stepped at the end of the epoch
    loop._skip_next_val, loop.val_loop._has_run = place.validated, False
    loop.advance = finish_batch if place.unfinished else read_on


def begin_epoch(trainer: Trainer) -> None:
    """Let the loops begin an epoch, where Lightning would look for the middle of one: it does with `max_steps`."""
    trainer.fit_loop._restarting = trainer.fit_loop.epoch_loop.restarting = False
