"""Exact resumption of trainings under `lightning.Trainer`: a callback, and a LightningModule
that brings it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..checkpoints.folder_io import FolderReader
from ..common.collectives import gather_objects
from ..common.parameter_rules import plain_name
from ..common.safe_serialization import from_plain
from ..common.seeding import capture_rng_state, restore_rng_state
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
    POSITIONS,
    PROCESS_STATES,
    LoopPosition,
    begin_epoch,
    current_loop_position,
    is_inside_validation,
    loaders_given_to_fit,
    loop_position_of,
    pop_loader_states,
    restart_loaders,
    resume_inside_epoch,
    settle_counters,
    step_plateau_schedules,
)
from ..training.accumulation import WindowLoader
from .loader_positions import (
    epoch_loaders,
    facade_position,
    from_facade_position,
    is_inside_of_epoch,
    position_state,
    restore_position,
)
from .missing_optimizer_states import explain_missing_optimizer_states
from .upstream_faults import warn_of_upstream_faults

_log = logging.getLogger(__name__)


class ResumingCallback(Callback):
    """Resume a training exactly: loops, random generators of every process, and the position in an
    `EpochLoader`.

    It does nothing unless the module, the data module or a training loader is one of this library.
    A checkpoint may be written at any hook: `loop_position_of` reads the position from Lightning's
    counters, `settle_counters` and `resume_inside_epoch` let Lightning's loops do the rest.
    """

    def __init__(self) -> None:
        self._resumed: dict[str, Any] | None = None
        self._position: dict[str, Any] = {}
        self._loader_states: list[dict[str, Any]] = []
        """Those that Lightning has saved, of loaders of other libraries."""
        self._metrics: dict[str, Any] | None = None
        self._loop_position = LoopPosition(0, 0)
        self._before_validation: dict[str, Any] | None = None
        self._is_loaded = False
        """Lightning has read the checkpoint of this run, or trains without one."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let `ckpt_path` be a folder too, where Lightning would read and write its own files."""
        self._is_loaded = False
        if _has_own_modules(trainer):
            _use_folder_reader(trainer)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the state of every process, and the metrics that plateau schedules depend on."""
        if (
            not _is_fitted(trainer)
            or PROCESS_STATES in checkpoint
            or "optimizer_states" not in checkpoint
        ):
            return
        if not _has_own_modules(trainer) and not epoch_loaders(trainer):
            return

        # A validation that is interrupted is repeated with the generators that it began with.
        rng = self._before_validation
        if current_loop_position(trainer).validated:
            rng = None
        add_process_states(checkpoint, trainer, rng=rng)

        positions = gather_objects(pack(position_state(trainer)))
        checkpoint[POSITIONS] = dict(enumerate(positions))

        # A metric that is not synchronised has another value in each process.
        metrics = {name: value.detach().cpu() for name, value in trainer.callback_metrics.items()}
        checkpoint[METRICS] = dict(enumerate(gather_objects(metrics)))

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the state of this process until the training starts, and settle the loops."""
        self._is_loaded = True
        states = checkpoint.get(PROCESS_STATES) or {}
        if not _is_fitted(trainer) or not (states or _has_own_modules(trainer)):
            return
        # A trainer may have several of these; the first one resumes.
        of_this_kind = [
            callback for callback in callbacks_of(trainer) if isinstance(callback, ResumingCallback)
        ]
        if self is not of_this_kind[0]:
            return

        rank = trainer.global_rank
        if states and rank not in states:
            _log.warning(
                "The checkpoint has no state of process %s: its random numbers will be others.",
                rank,
            )
        resumed: dict[str, Any] = {}
        if rank in states:
            resumed = unpack(states[rank])
        self._resumed = resumed
        metrics = checkpoint.get(METRICS) or {}
        if metrics:
            self._metrics = metrics.get(rank, metrics[0])

        fit_loop = checkpoint["loops"]["fit_loop"]
        self._loop_position = loop_position_of(fit_loop)
        warn_of_upstream_faults(
            callbacks_of(trainer), self._loop_position, is_inside_validation(fit_loop)
        )
        settle_counters(fit_loop, self._loop_position)
        self._loader_states = pop_loader_states(checkpoint)

        positions = checkpoint.get(POSITIONS) or {}
        if positions:
            # The order of the samples is that of process 0, also for processes that were not there.
            self._position = from_plain(unpack(positions.get(rank, positions[0])))
        else:
            self._position = from_facade_position(resumed.get("data"), self._loop_position)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the states of loaders from their first batch on: Lightning may read it before
        the training starts.
        """
        for loader in loaders_given_to_fit(trainer):
            if isinstance(loader, EpochLoader):
                loader.tracked = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go to the position in the data, and restore the generators."""
        self._is_loaded = True
        for loader in epoch_loaders(trainer):
            loader.tracked = True
            # It leaves the states of loaders out of files of weights only.
            _use_folder_reader(trainer)

        resumed = self._resumed
        self._resumed = None
        if resumed is None:
            return

        loop_position = self._loop_position
        self._restore_metrics(trainer)
        if loop_position.done > 0:
            _schedule_accumulation(trainer, loop_position.epoch)
        restore_position(trainer, loop_position, self._position, self._loader_states)
        if resumed.get("rng") is not None:
            restore_rng_state(resumed["rng"], trainer.world_size > 1)

        if loop_position.done == 0:
            begin_epoch(trainer)
        if is_inside_of_epoch(loop_position, self._position):
            resume_inside_epoch(trainer, loop_position)
        else:
            restart_loaders(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the epoch of the loaders, which do not notice the end of an epoch that Lightning cuts
        short.

        With `overfit_batches` they stay in the first one, whose batches are repeated.
        """
        epoch = trainer.current_epoch
        if getattr(trainer, "overfit_batches", 0):
            epoch = 0
        for loader in epoch_loaders(trainer):
            if epoch != loader.epoch:
                loader.set_epoch(epoch)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the generators, as an interrupted validation is repeated."""
        self._before_validation = capture_rng_state(trainer.world_size > 1)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop them."""
        self._before_validation = None

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Report why a checkpoint could not be loaded, where Lightning's error does not tell."""
        if _is_fitted(trainer) and not self._is_loaded:
            explain_missing_optimizer_states(trainer)

    def _restore_metrics(self, trainer: Trainer) -> None:
        """Restore the metrics logged last, and step the schedules that follow one if they had
        not been.
        """
        if self._metrics is not None:
            device = trainer.strategy.root_device
            for name, value in self._metrics.items():
                trainer.callback_metrics[name] = value.to(device)

        if not self._loop_position.owes_schedules:
            return
        if self._metrics is not None:
            step_plateau_schedules(trainer)
        elif any(config.reduce_on_plateau for config in trainer.lr_scheduler_configs):
            _log.warning(
                "The checkpoint was written before the schedule that follows a metric was stepped "
                "for its epoch, and has no metrics: the learning rate may be another one than "
                "that of an uninterrupted training."
            )


class ResumableModule(LightningModule):
    """A LightningModule whose checkpoints hold the random generators and the position in an
    `EpochLoader` too.

    So `fit(module, ckpt_path=...)` gives the numbers of a training that was never interrupted, in
    mid-epoch too. Loaders of other kinds resume as Lightning lets them. Hooks may be overridden
    without `super()`, except `on_load_checkpoint`, which weights that are shared and stored once
    need.
    """

    resumes_exactly = True
    """Read by `ResumingCallback`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let overrides of `configure_callbacks` leave out `super()`, as Lightning's returns
        nothing.
        """
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
        """Give weights the names that this module has for them, for strategies that load them by
        themselves.
        """
        super().on_load_checkpoint(checkpoint)
        # Without this entry Lightning calls no callback.
        checkpoint.setdefault("callbacks", {})
        # Some strategies have loaded the weights themselves.
        if "state_dict" in checkpoint:
            checkpoint["state_dict"] = self._under_own_names(checkpoint["state_dict"])

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As that of `nn.Module`, but compiled models load weights of models that are not
        compiled, and the reverse.
        """
        return super().load_state_dict(
            self._under_own_names(state_dict), strict=strict, assign=assign
        )

    def _under_own_names(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return weights under the names of this module, also of tied ones that a safetensors
        file stores once.
        """
        own = self.state_dict(keep_vars=True)

        # Names differ by the wrappers of compiled modules.
        own_names = {plain_name(name): name for name in own}
        renamed: dict[str, Any] = {}
        for name, value in stored.items():
            own_name = own_names.get(plain_name(name), name)
            renamed[own_name] = value

        # Of weights that are tied one is stored.
        stored_names = {id(value): name for name, value in own.items() if name in renamed}
        for name, value in own.items():
            if name not in renamed and id(value) in stored_names:
                renamed[name] = renamed[stored_names[id(value)]]
        return renamed


def _with_own_callbacks(configure: Callable[[Any], Any]) -> Callable[[Any], list[Callback]]:
    """Return `configure_callbacks` with the module's own callbacks added, unless they or the
    trainer's have them.
    """

    @functools.wraps(configure)
    def configure_callbacks(self: ResumableModule) -> list[Callback]:
        configured = configure(self)
        callbacks: list[Callback] = [configured]
        if isinstance(configured, Sequence):
            callbacks = list(configured)

        kinds = {type(callback) for callback in [*callbacks, *callbacks_of(self.trainer)]}
        for callback in self.own_callbacks():
            if type(callback) not in kinds:
                callbacks.append(callback)
        return callbacks

    return configure_callbacks


def add_process_states(
    checkpoint: dict[str, Any], trainer: Trainer, rng: dict[str, Any] | None = None
) -> None:
    """Add the state of every process to a checkpoint of Lightning, unless that has weights only.

    Args:
        checkpoint: as Lightning makes it.
        trainer: fits.
        rng: the generators; by default their present states.
    """
    if "optimizer_states" not in checkpoint:
        return
    if rng is None:
        rng = capture_rng_state(trainer.world_size > 1)
    state = {"rng": rng, "data": facade_position(trainer)}
    states = gather_objects(pack(state))
    checkpoint[PROCESS_STATES] = dict(enumerate(states))

    if isinstance(trainer.train_dataloader, WindowLoader):
        checkpoint[IN_WINDOWS] = True
    if epoch_loaders(trainer) or state["data"] is not None:
        pop_loader_states(checkpoint)


def _use_folder_reader(trainer: Trainer) -> None:
    """Read folders too, and write files that hold only tensors and plain values, where Lightning
    has its own files.
    """
    strategy = trainer.strategy
    reads_files = type(strategy).load_checkpoint is Strategy.load_checkpoint
    if reads_files and type(strategy.checkpoint_io) is TorchCheckpointIO:
        strategy.checkpoint_io = FolderReader(trainer)


def _is_fitted(trainer: Trainer) -> bool:
    return trainer.state.fn == TrainerFn.FITTING


def _has_own_modules(trainer: Trainer) -> bool:
    """Return whether the module or the data module is one of this library."""
    datamodule: Any = getattr(trainer, "datamodule", None)
    modules = (trainer.lightning_module, datamodule)
    return any(getattr(module, "resumes_exactly", False) for module in modules)


def _schedule_accumulation(trainer: Trainer, epoch: int) -> None:
    """Set the batches of a step as Lightning's callback does when an epoch begins: a resumed one
    does not begin.
    """
    for callback in callbacks_of(trainer):
        if isinstance(callback, GradientAccumulationScheduler):
            trainer.accumulate_grad_batches = callback.get_accumulate_grad_batches(epoch)
