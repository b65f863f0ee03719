"""Exact resumption of trainings under `lightning.Trainer`: a callback, and a LightningModule that brings it."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..checkpoints.folder_io import FolderReader
from ..common.collectives import gather_objects
from ..common.parameter_rules import plain_name
from ..common.safe_serialization import UnsafeValueError, from_plain, to_plain
from ..common.seeding import capture_host_rng, capture_rng_state, restore_host_rng, restore_rng_state
from ..common.torch_files import pack, unpack
from ..data.epoch_loader import EpochLoader
from ..internals.lightning_import import (
    Callback,
    GradientAccumulationScheduler,
    LightningModule,
    Strategy,
    TorchCheckpointIO,
    Trainer,
    TrainerFn,
    callbacks_of,
)
from ..internals.loop_states import (
    IN_WINDOWS,
    METRICS,
    PROCESS_STATES,
    Place,
    begin_epoch,
    begin_reading_anew,
    count_read_ahead,
    go_on_inside,
    leave_out_loaders,
    place_in_loops,
    place_of,
    settle,
)
from ..training.accumulation import WindowLoader
from .step_window import load_step, step_so_far

_log = logging.getLogger(__name__)


class ResumingCallback(Callback):
    """Resume a training exactly: loops, random generators of every process, and the position in an `EpochLoader`.

    `DataModule` and `ResumableModule` add it by themselves. A checkpoint may be written at any hook: `place_of` reads
    the position from Lightning's counters, `settle` and `go_on_inside` let Lightning's loops do the rest.
    """

    def __init__(self) -> None:
        self._resumed: dict[str, Any] | None = None
        self._metrics: dict[str, Any] = {}
        self._place = Place(0, 0)
        self._generators: dict[str, Any] | None = None
        self._is_positioned = False
        """Whether what had been read ahead has been read again: Lightning reads at once where there is no length."""
        self._before_validation: dict[str, Any] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let `ckpt_path` be a folder too, where Lightning would read and write its own files."""
        strategy = trainer.strategy
        reads_files = type(strategy).load_checkpoint is Strategy.load_checkpoint
        if reads_files and type(strategy.checkpoint_io) is TorchCheckpointIO:
            strategy.checkpoint_io = FolderReader(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the state of every process, and the metrics that plateau schedules depend on."""
        if not _is_fitted(trainer) or PROCESS_STATES in checkpoint or "optimizer_states" not in checkpoint:
            return
        repeated = None if place_in_loops(trainer).validated else self._before_validation
        add_process_states(checkpoint, trainer, rng=repeated)
        checkpoint[METRICS] = {name: value.detach().cpu() for name, value in trainer.callback_metrics.items()}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the state of this process until the training starts, and settle the loops."""
        if not _is_fitted(trainer):
            return
        states, rank = checkpoint.get(PROCESS_STATES) or {}, trainer.global_rank
        if states and rank not in states:
            _log.warning("The checkpoint has no state of process %s: its random numbers will be others.", rank)
        self._resumed = unpack(states[rank]) if rank in states else {}
        self._metrics = checkpoint.get(METRICS, {})
        fit_loop = checkpoint["loops"]["fit_loop"]
        self._place = place_of(fit_loop)
        settle(fit_loop, self._place)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go to the position in the data, and restore the generators."""
        resumed, self._resumed = self._resumed, None
        self._is_positioned = False
        loader, place = _epoch_loader(trainer), self._place
        if loader is not None:
            loader.track()
        if resumed is None:
            return
        device = trainer.strategy.root_device
        trainer.callback_metrics.update({name: value.to(device) for name, value in self._metrics.items()})
        if place.done > 0:
            _schedule_accumulation(trainer, place.epoch)
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

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the epoch of the loader, which does not notice the end of an epoch that Lightning cuts short.

        With `overfit_batches` it stays in the first one, whose batches are repeated.
        """
        loader = _epoch_loader(trainer)
        epoch = 0 if getattr(trainer, "overfit_batches", 0) else trainer.current_epoch
        if loader is not None and epoch != loader.epoch:
            loader.set_epoch(epoch)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Restore the generators after a batch was read a second time."""
        self._restore_generators()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the generators, as an interrupted validation is repeated."""
        self._before_validation = capture_rng_state(trainer.world_size > 1)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop them."""
        self._before_validation = None

    def _go_to_batch(self, trainer: Trainer, loader: EpochLoader, stored: dict[str, Any]) -> None:
        loader.set_epoch(self._place.epoch)
        state = stored.get("loader")
        if state is None:
            loader.skip(self._place.done)
        else:
            loader.load_state_dict(state, self._position_reached)
        begin_reading_anew(trainer)

    def _position_reached(self) -> None:
        self._restore_generators()
        self._is_positioned = True

    def _keep_generators(self) -> None:
        if not self._is_positioned:
            self._generators = capture_host_rng()

    def _restore_generators(self) -> None:
        state, self._generators = self._generators, None
        if state is not None:
            restore_host_rng(state)


class ResumableModule(LightningModule):
    """A LightningModule whose checkpoints hold the random generators and the position in an `EpochLoader` too.

    So `fit(module, ckpt_path=...)` gives the numbers of a training that was never interrupted, in mid-epoch too.
    Loaders of other kinds resume as Lightning lets them. Hooks may be overridden without `super()`, except
    `on_load_checkpoint`, which weights that are shared and stored once need.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let overrides of `configure_callbacks` leave out `super()`, as Lightning's returns nothing."""
        super().__init_subclass__(**kwargs)
        if "configure_callbacks" in vars(cls):
            cls.configure_callbacks = _with_own_callbacks(cls.configure_callbacks)  # type: ignore[method-assign]

    def own_callbacks(self) -> list[Callback]:
        """Return the callbacks that this module needs."""
        return [ResumingCallback()]

    def configure_callbacks(self) -> Any:
        """Return those of `own_callbacks` that the trainer lacks."""
        return _with_own_callbacks(LightningModule.configure_callbacks)(self)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Give weights the names that this module has for them, for strategies that load them by themselves."""
        super().on_load_checkpoint(checkpoint)
        checkpoint.setdefault("callbacks", {})  # without it Lightning calls no callback
        if "state_dict" in checkpoint:  # not if the strategy has loaded the weights itself
            checkpoint["state_dict"] = self._under_own_names(checkpoint["state_dict"])

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As that of `nn.Module`, but compiled models load weights of models that are not compiled, and the reverse."""
        return super().load_state_dict(self._under_own_names(state_dict), strict=strict, assign=assign)

    def _under_own_names(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return weights under the names of this module, also of tied ones that a safetensors file stores once."""
        own = self.state_dict(keep_vars=True)
        names = {plain_name(name): name for name in own}
        renamed = {names.get(plain_name(name), name): value for name, value in stored.items()}
        by_tensor = {id(value): name for name, value in own.items() if name in renamed}
        for name, value in own.items():
            if name not in renamed and id(value) in by_tensor:
                renamed[name] = renamed[by_tensor[id(value)]]
        return renamed


def _with_own_callbacks(configure: Callable[[Any], Any]) -> Callable[[Any], list[Callback]]:
    """Return `configure_callbacks` with the module's own callbacks added, unless they or the trainer's have them."""

    @functools.wraps(configure)
    def configure_callbacks(self: ResumableModule) -> list[Callback]:
        configured = configure(self)
        callbacks = list(configured) if isinstance(configured, Sequence) else [configured]
        kinds = {type(callback) for callback in [*callbacks, *callbacks_of(self.trainer)]}
        return [*callbacks, *(callback for callback in self.own_callbacks() if type(callback) not in kinds)]

    return configure_callbacks


def add_process_states(checkpoint: dict[str, Any], trainer: Trainer, rng: dict[str, Any] | None = None) -> None:
    """Add the state of every process to a checkpoint of Lightning, unless that has weights only.

    Args:
        checkpoint: as Lightning makes it.
        trainer: fits.
        rng: the generators; by default their present states.
    """
    if "optimizer_states" not in checkpoint:
        return
    state = {"rng": rng or capture_rng_state(trainer.world_size > 1), "data": data_state(trainer)}
    checkpoint[PROCESS_STATES] = dict(enumerate(gather_objects(pack(state))))
    if isinstance(trainer.train_dataloader, WindowLoader):
        checkpoint[IN_WINDOWS] = True
    if state["data"] is not None:
        leave_out_loaders(checkpoint)


def data_state(trainer: Trainer) -> dict[str, Any] | None:
    """Return the position of a training in an `EpochLoader`, as in `data_state_*.pth`; None for other loaders.

    The facade, which reads whole windows itself, does not use "inside": the position in Lightning's own count, how many
    batches Lightning has read ahead, and the gradients of a step that is not complete.
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
            inside["read"] = count_read_ahead(trainer)
            inside["loader"] = inner.state_dict(unused=inside["read"])
        if done % accumulation and not place.at_end:
            inside["step"] = step_so_far(trainer)
        state["inside"] = inside
    try:
        return to_plain(state)
    except UnsafeValueError as error:
        _log.warning("The state of the data loader is not saved, as it holds what a checkpoint cannot: %s.", error)
        return to_plain({**state, "loader": None, "inside": {}})


def _is_fitted(trainer: Trainer) -> bool:
    return trainer.state.fn == TrainerFn.FITTING


def _layout(trainer: Trainer, loader: EpochLoader, accumulation: int) -> dict[str, int]:
    batch_size = loader.samples_per_round // trainer.world_size
    return {"world_size": trainer.world_size, "batch_size": batch_size, "accumulation": accumulation}


def _epoch_loader(trainer: Trainer) -> EpochLoader | None:
    loader = trainer.train_dataloader
    return loader if isinstance(loader, EpochLoader) else None


def _position(place: Place) -> list[int]:
    return [place.epoch + 1, 0] if place.at_end else [place.epoch, place.done]


def _stored_data(trainer: Trainer, place: Place, written: Any) -> dict[str, Any]:
    """Return the state of the data, which may be one of the facade, if its layout and its position are the same."""
    loader = _epoch_loader(trainer)
    if written is None or loader is None:
        return {}
    stored: dict[str, Any] = from_plain(written)
    inside = stored.get("inside", {})
    over = stored["done"] >= stored["windows"]
    at = [stored["epoch"] + 1, 0] if over else [stored["epoch"], stored["done"] * stored["layout"]["accumulation"]]
    layout = _layout(trainer, loader, trainer.accumulate_grad_batches)
    if place.done > 0 and not place.at_end:
        _warn_of_other_layout(stored["layout"], layout)
    same = stored["layout"] == layout and inside.get("place", at) == _position(place)
    return {"loader": stored["loader"], **inside} if same else {}


def _schedule_accumulation(trainer: Trainer, epoch: int) -> None:
    """Set the batches of a step as Lightning's callback does when an epoch begins: a resumed one does not begin."""
    for callback in callbacks_of(trainer):
        if isinstance(callback, GradientAccumulationScheduler):
            trainer.accumulate_grad_batches = callback.get_accumulate_grad_batches(epoch)


def _warn_of_other_layout(written: dict[str, int], now: dict[str, int]) -> None:
    """Warn where batches that are skipped are not those that were trained; accumulation does not change them."""
    changes = []
    for name in ("batch_size", "world_size"):
        if written[name] != now[name]:
            changes.append(f"{name} was {written[name]}, and is {now[name]}")
    if changes:
        _log.warning(
            "The training resumes in the middle of an epoch with other batches (%s): samples of this epoch are trained "
            "twice, or not at all. Resume with the same batch size and processes, or from the end of an epoch.",
            ", ".join(changes),
        )


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
