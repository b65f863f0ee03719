"""What a training under `lightning.Trainer` needs to go on exactly, and when: for modules and for a callback."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ..common.safe_serialization import UnsafeValueError, from_plain, to_plain
from ..common.seeding import capture_rng_state, restore_rng_state
from ..common.torch_files import pack, unpack
from ..data.epoch_loader import EpochLoader
from ..internals.lightning_import import Trainer, TrainerFn
from ..internals.lightning_internals import begin_reading_anew
from ..internals.loop_states import IN_WINDOWS, PROCESS_STATES, leave_out_loaders, place_in_loops
from ..training.accumulation import WindowLoader

__all__ = ["Resuming", "add_process_states", "data_state", "is_fitted"]

_log = logging.getLogger(__name__)


class Resuming:
    """Brings the random generators and an `EpochLoader` to where a checkpoint says they were.

    Its methods are called at the hooks of Lightning that have their names.
    """

    def __init__(self) -> None:
        self._resumed: dict[str, Any] | None = None
        self._generators: dict[str, Any] | None = None

    def on_load_checkpoint(self, trainer: Trainer, checkpoint: dict[str, Any]) -> None:
        """Note the state of this process."""
        states, rank = checkpoint.get(PROCESS_STATES) or {}, trainer.global_rank
        if states and rank not in states:
            _log.warning("The checkpoint has no state of process %s: its random numbers will be others.", rank)
        self._resumed = unpack(states[rank]) if rank in states else {}

    def on_train_start(self, trainer: Trainer) -> None:
        """Go to the position in the data."""
        resumed, self._resumed = self._resumed, None
        loader = _epoch_loader(trainer)
        if loader is not None:
            loader.track()
        if resumed is None:
            return
        self._generators = resumed.get("rng")
        epoch, done = place_in_loops(trainer)
        if loader is not None:
            _go_to(loader, epoch, done, _loader_state(trainer, resumed.get("data")), self._restore(trainer))
        if done == 0:
            self._restore_generators(trainer)
        if loader is not None or done == 0:  # a loader of torch draws when its iteration begins
            begin_reading_anew(trainer)

    def on_train_epoch_start(self, trainer: Trainer) -> None:
        """Give the loader its epoch: one that Lightning has cut short does not know that it has ended.

        With `overfit_batches` it stays in the first one, whose batches come again and again.
        """
        loader = _epoch_loader(trainer)
        epoch = 0 if getattr(trainer, "overfit_batches", 0) else trainer.current_epoch
        if loader is not None and epoch != loader.epoch:
            loader.set_epoch(epoch)

    def on_train_batch_start(self, trainer: Trainer) -> None:
        """Restore the generators where a batch had to be read once more to get here."""
        self._restore_generators(trainer)

    def _restore(self, trainer: Trainer) -> Callable[[], None]:
        return lambda: self._restore_generators(trainer)

    def _restore_generators(self, trainer: Trainer) -> None:
        state, self._generators = self._generators, None
        if state is not None:
            restore_rng_state(state, trainer.world_size > 1)


def is_fitted(trainer: Trainer) -> bool:
    """Tell whether the trainer trains, or is about to."""
    return trainer.state.fn == TrainerFn.FITTING


def add_process_states(checkpoint: dict[str, Any], trainer: Trainer) -> None:
    """Put what `PROCESS_STATES` stands for into what Lightning is about to write, unless that is weights only."""
    if "optimizer_states" not in checkpoint:
        return
    state = {"rng": capture_rng_state(trainer.world_size > 1), "data": data_state(trainer)}
    checkpoint[PROCESS_STATES] = dict(enumerate(_gathered(pack(state), trainer.world_size)))
    if isinstance(trainer.train_dataloader, WindowLoader):
        checkpoint[IN_WINDOWS] = True
    if state["data"] is not None:
        leave_out_loaders(checkpoint)


def data_state(trainer: Trainer) -> dict[str, Any] | None:
    """As the facade's `data_state_*.pth`: where a training stands in an `EpochLoader`; None for loaders of other kinds.

    Of a stream only the position is told, not the loader's state: Lightning has read one batch more than it used.
    """
    loader = trainer.train_dataloader
    windowed = isinstance(loader, WindowLoader)
    inner = loader.loader if windowed else loader
    if not isinstance(inner, EpochLoader):
        return None
    epoch, done = place_in_loops(trainer)
    batches, accumulation = trainer.num_training_batches, 1 if windowed else trainer.accumulate_grad_batches
    sized = windowed or batches != float("inf")
    windows = math.ceil(batches / accumulation) if sized else done // accumulation + 1
    state: dict[str, Any] = {
        "epoch": epoch,
        "done": windows if done >= batches else done // accumulation,
        "loader": inner.state_dict() if sized and done % accumulation == 0 else None,
        "windows": windows,
        "layout": _layout(trainer, inner, loader.accumulation if windowed else accumulation),
    }
    try:
        return to_plain(state)
    except UnsafeValueError as error:
        _log.warning("The state of the data loader is not saved, as it holds what a checkpoint cannot: %s.", error)
        return to_plain({**state, "loader": None})


def _layout(trainer: Trainer, loader: EpochLoader, accumulation: int) -> dict[str, int]:
    batch_size = loader.samples_per_round // trainer.world_size
    return {"world_size": trainer.world_size, "batch_size": batch_size, "accumulation": accumulation}


def _epoch_loader(trainer: Trainer) -> EpochLoader | None:
    loader = trainer.train_dataloader
    return loader if isinstance(loader, EpochLoader) else None


def _loader_state(trainer: Trainer, written: Any) -> dict[str, Any] | None:
    """Return the loader's state, if it is of a training that dealt out its data in the same way, at the same place."""
    loader = _epoch_loader(trainer)
    if written is None or loader is None or trainer.num_training_batches == float("inf"):
        return None
    stored: dict[str, Any] = from_plain(written)
    place = (stored["epoch"], stored["done"] * stored["layout"]["accumulation"])
    layout = _layout(trainer, loader, trainer.accumulate_grad_batches)
    same = stored["layout"] == layout and place == place_in_loops(trainer)
    return stored["loader"] if same else None


def _go_to(
    loader: EpochLoader, epoch: int, done: int, state: dict[str, Any] | None, on_ready: Callable[[], None]
) -> None:
    loader.set_epoch(epoch)
    if done and state is not None:
        loader.load_state_dict(state, on_ready)
    elif done:
        loader.skip(done)


def _gathered(value: Any, world_size: int) -> list[Any]:
    if world_size == 1:
        return [value]
    values: list[Any] = [None] * world_size
    dist.all_gather_object(values, value)
    return values
