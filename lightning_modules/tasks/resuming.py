"""What a training under `lightning.Trainer` needs to go on exactly, and when: for modules and for a callback."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch.distributed as dist

from ..common.safe_serialization import UnsafeValueError, from_plain, to_plain
from ..common.seeding import capture_host_rng, capture_rng_state, restore_host_rng, restore_rng_state
from ..common.torch_files import pack, unpack
from ..data.epoch_loader import EpochLoader
from ..internals.lightning_import import Trainer, TrainerFn
from ..internals.loop_states import (
    IN_WINDOWS,
    METRICS,
    PROCESS_STATES,
    Place,
    begin_epoch,
    begin_reading_anew,
    go_on_inside,
    leave_out_loaders,
    place_in_loops,
    place_of,
    read_ahead,
    settle,
)
from ..training.accumulation import WindowLoader
from .step_window import load_step, step_so_far

__all__ = ["Resuming", "add_process_states", "data_state", "is_fitted"]

_log = logging.getLogger(__name__)


class Resuming:
    """Brings loops, random generators and an `EpochLoader` to where a checkpoint says they were.

    Its methods are called at the hooks of Lightning that have their names. A checkpoint may be written at any of them:
    `place_of` reads from Lightning's counters what is done, `settle` and `go_on_inside` let Lightning do the rest.
    """

    def __init__(self) -> None:
        self._resumed: dict[str, Any] | None = None
        self._metrics: dict[str, Any] = {}
        self._place = Place(0, 0)
        self._kept: dict[str, Any] | None = None
        self._before_validation: dict[str, Any] | None = None

    def on_save_checkpoint(self, trainer: Trainer, checkpoint: dict[str, Any]) -> None:
        """Add the state of every process, and the metrics that plateau schedules go by."""
        if PROCESS_STATES in checkpoint or "optimizer_states" not in checkpoint:
            return
        repeated = None if place_in_loops(trainer).validated else self._before_validation
        add_process_states(checkpoint, trainer, rng=repeated)
        checkpoint[METRICS] = {name: value.detach().cpu() for name, value in trainer.callback_metrics.items()}

    def on_load_checkpoint(self, trainer: Trainer, checkpoint: dict[str, Any]) -> None:
        """Note the state of this process, and settle the loops."""
        states, rank = checkpoint.get(PROCESS_STATES) or {}, trainer.global_rank
        if states and rank not in states:
            _log.warning("The checkpoint has no state of process %s: its random numbers will be others.", rank)
        self._resumed = unpack(states[rank]) if rank in states else {}
        self._metrics = checkpoint.get(METRICS, {})
        fit_loop = checkpoint["loops"]["fit_loop"]
        self._place = place_of(fit_loop)
        settle(fit_loop, self._place)

    def on_train_start(self, trainer: Trainer) -> None:
        """Go to the position in the data."""
        resumed, self._resumed = self._resumed, None
        loader, place = _epoch_loader(trainer), self._place
        if loader is not None:
            loader.track()
        if resumed is None:
            return
        device = trainer.strategy.root_device
        trainer.callback_metrics.update({name: value.to(device) for name, value in self._metrics.items()})
        stored = _stored_data(trainer, place, resumed.get("data"))
        # Lightning reads a batch of a loader without a length before the first epoch begins.
        inside = place.done > 0 or bool(stored.get("read"))
        if loader is not None:
            loader.end_workers()  # Lightning has read already where there is no length
            _warn_of_kept_workers(trainer, loader)
        if loader is not None and inside and not place.at_end:
            self._go_to_batch(trainer, loader, stored)
        elif loader is not None:
            _go_to_epoch(loader, place, stored)
        if resumed.get("rng") is not None:
            restore_rng_state(resumed["rng"], trainer.world_size > 1)
        if "step" in stored:
            load_step(trainer.lightning_module, stored["step"])
        if place.done == 0:
            begin_epoch(trainer)
        if inside:
            go_on_inside(trainer, place, self._keep_generators)
        else:
            begin_reading_anew(trainer)  # a loader of torch draws when its iteration begins

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
        self._bring_generators_back()

    def on_validation_start(self, trainer: Trainer) -> None:
        """Note the generators: a validation that is interrupted is begun again."""
        self._before_validation = capture_rng_state(trainer.world_size > 1)

    def on_validation_end(self, trainer: Trainer) -> None:
        """Forget them."""
        self._before_validation = None

    def _go_to_batch(self, trainer: Trainer, loader: EpochLoader, stored: dict[str, Any]) -> None:
        loader.set_epoch(self._place.epoch)
        state = stored.get("loader")
        if state is None:
            loader.skip(self._place.done)
        else:
            loader.load_state_dict(state, self._bring_generators_back)
        begin_reading_anew(trainer, None if state is None else [tuple(item) for item in stored.get("read", ())])

    def _keep_generators(self) -> None:
        self._kept = capture_host_rng()

    def _bring_generators_back(self) -> None:
        state, self._kept = self._kept, None
        if state is not None:
            restore_host_rng(state)


def is_fitted(trainer: Trainer) -> bool:
    """Tell whether the trainer trains, or is about to."""
    return trainer.state.fn == TrainerFn.FITTING


def add_process_states(checkpoint: dict[str, Any], trainer: Trainer, rng: dict[str, Any] | None = None) -> None:
    """Put what `PROCESS_STATES` stands for into what Lightning is about to write, unless that is weights only.

    Args:
        checkpoint: as Lightning makes it.
        trainer: fits.
        rng: the generators, if not as they are now.
    """
    if "optimizer_states" not in checkpoint:
        return
    state = {"rng": rng or capture_rng_state(trainer.world_size > 1), "data": data_state(trainer)}
    checkpoint[PROCESS_STATES] = dict(enumerate(_gathered(pack(state), trainer.world_size)))
    if isinstance(trainer.train_dataloader, WindowLoader):
        checkpoint[IN_WINDOWS] = True
    if state["data"] is not None:
        leave_out_loaders(checkpoint)


def data_state(trainer: Trainer) -> dict[str, Any] | None:
    """As the facade's `data_state_*.pth`: where a training stands in an `EpochLoader`; None for loaders of other kinds.

    Under "inside" is what the facade, which reads whole windows itself, does not use: the place in Lightning's own
    count, the batches that Lightning has read ahead, and what batches have left of a step that is still to be taken.
    """
    loader = trainer.train_dataloader
    windowed = isinstance(loader, WindowLoader)
    inner = loader.loader if windowed else loader
    if not isinstance(inner, EpochLoader):
        return None
    place = place_in_loops(trainer)
    epoch, done = place.epoch, place.done
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
    if not windowed:
        inside: dict[str, Any] = {"place": _position(place)}
        current: Any = trainer.fit_loop.epoch_loop.batch_progress.current
        if current.ready > current.processed:  # the loader is a batch further than the training
            state["loader"] = None
        elif state["loader"] is None:
            inside |= {"loader": inner.state_dict(), "read": read_ahead(trainer)}
        if done % accumulation and not place.at_end:
            inside["step"] = step_so_far(trainer)
        state["inside"] = inside
    try:
        return to_plain(state)
    except UnsafeValueError as error:
        _log.warning("The state of the data loader is not saved, as it holds what a checkpoint cannot: %s.", error)
        return to_plain({**state, "loader": None, "inside": {}})


def _layout(trainer: Trainer, loader: EpochLoader, accumulation: int) -> dict[str, int]:
    batch_size = loader.samples_per_round // trainer.world_size
    return {"world_size": trainer.world_size, "batch_size": batch_size, "accumulation": accumulation}


def _epoch_loader(trainer: Trainer) -> EpochLoader | None:
    loader = trainer.train_dataloader
    return loader if isinstance(loader, EpochLoader) else None


def _position(place: Place) -> list[int]:
    return [place.epoch + 1, 0] if place.at_end else [place.epoch, place.done]


def _stored_data(trainer: Trainer, place: Place, written: Any) -> dict[str, Any]:
    """Return the state of the data, if it is of a training that dealt out its data in the same way, at the same place.

    It may be one of the facade.
    """
    loader = _epoch_loader(trainer)
    if written is None or loader is None:
        return {}
    stored: dict[str, Any] = from_plain(written)
    inside = stored.get("inside", {})
    over = stored["done"] >= stored["windows"]
    at = [stored["epoch"] + 1, 0] if over else [stored["epoch"], stored["done"] * stored["layout"]["accumulation"]]
    layout = _layout(trainer, loader, trainer.accumulate_grad_batches)
    same = stored["layout"] == layout and inside.get("place", at) == _position(place)
    return {"loader": stored["loader"], **inside} if same else {}


def _warn_of_kept_workers(trainer: Trainer, loader: EpochLoader) -> None:
    cut = not isinstance(trainer.limit_train_batches, float) or trainer.limit_train_batches < 1
    if loader.persistent_workers and (trainer.enable_validation or cut):
        _log.warning(
            "persistent_workers=True: the resumed training may draw other random numbers than an uninterrupted one, as "
            "workers of validations begin anew, and those of epochs that limit_train_batches cuts short had read ahead."
        )


def _go_to_epoch(loader: EpochLoader, place: Place, stored: dict[str, Any]) -> None:
    loader.set_epoch(place.epoch + place.at_end)
    if stored.get("loader") is not None:
        loader.begin_epoch_after(stored["loader"])


def _gathered(value: Any, world_size: int) -> list[Any]:
    if world_size == 1:
        return [value]
    values: list[Any] = [None] * world_size
    dist.all_gather_object(values, value)
    return values
