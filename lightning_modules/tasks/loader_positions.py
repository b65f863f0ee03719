"""Save and restore the position of a Lightning training in its data.

Each process has its own position. A training may have several loaders, in a dict, a list or a
`CombinedLoader`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from torch.utils.data import IterableDataset

from ..common.libraries import is_instance
from ..common.safe_serialization import UnsafeValueError, from_plain, to_plain
from ..data.epoch_loader import EpochLoader
from ..data.loader_state import before_epoch, position_at, with_other_batches, workers_in
from ..data.worker_state import is_torchdata_loader
from ..internals.lightning_import import Trainer
from ..internals.loop_states import (
    LoopPosition,
    count_read_ahead,
    current_loop_position,
    exhausted_loaders,
    restart_loaders,
    set_batches_done,
    set_exhausted_loaders,
    train_loaders,
)
from ..training.accumulation import WindowLoader
from .step_window import incomplete_step, is_inside_step, load_step

_log = logging.getLogger(__name__)


def epoch_loaders(trainer: Trainer) -> list[EpochLoader]:
    """Return the training's `EpochLoader`s, whose position can be restored exactly."""
    return [loader for loader in train_loaders(trainer) if isinstance(loader, EpochLoader)]


def end_epoch_with_streams(trainer: Trainer) -> None:
    """Tell Lightning that the current batch is the last one, if the streams end with it.

    With a `limit_train_batches` above the length of a stream, Lightning waits for the limit: it
    would not step with the last accumulated batches, nor step the schedules of the epoch, nor
    validate.

    Args:
        trainer: the trainer, at the start of a batch.
    """
    progress = trainer.fit_loop.epoch_loop.batch_progress
    if progress.is_last_batch or count_read_ahead(trainer) > 0:
        return

    # Streams of which Lightning does not know when the shorter ones have ended are left to it.
    loaders = train_loaders(trainer)
    exhausted = exhausted_loaders(trainer)
    if len(exhausted) != len(loaders):
        return
    for loader, is_exhausted in zip(loaders, exhausted, strict=True):
        ends_now = isinstance(loader, EpochLoader) and loader.end_of_loader
        if not ends_now and not is_exhausted:
            return

    progress.is_last_batch = True
    validate_after_last_batch(trainer)


def validate_after_last_batch(trainer: Trainer) -> None:
    """Validate after the last batch of an epoch instead of at `limit_train_batches`.

    Does nothing if the validations are at an interval of their own.
    """
    interval: object = trainer.val_check_interval
    if isinstance(interval, float) and interval == 1.0:
        trainer.val_check_batch = math.inf


def position_state(
    trainer: Trainer,
    *,
    module_accumulates: bool = False,
    validation_data: list[dict[str, Any]] | None = None,
) -> object:
    """Return the position in the loaders and in an incomplete step, as plain values and tensors.

    If a loader has restarted within an epoch, its state does not cover the batches before the
    restart. `began_again` records whether one of these may be unused.

    Args:
        trainer: the trainer, during `fit`.
        module_accumulates: whether the module, under manual optimization, has gradients that no
            optimizer step has used yet.
        validation_data: the states of the data of validations, to be stored with the position.
    """
    loop_position = current_loop_position(trainer)
    batches_in_progress = _batches_in_progress(trainer)
    unused = count_read_ahead(trainer) + batches_in_progress
    position: dict[str, Any] = {
        "layout": _layout(trainer),
        "unused": unused,
        "validation": validation_data,
    }
    if epoch_loaders(trainer):
        loaders = train_loaders(trainer)
        exhausted = exhausted_loaders(trainer) or [False] * len(loaders)

        # Save the state of each loader from before the batches that no step has used.
        unused_of_loaders: list[int] = []
        states: list[Any] = []
        for loader, is_exhausted in zip(loaders, exhausted, strict=True):
            unused_of_loader = unused
            if not is_exhausted:
                unused_of_loader = _count_unused(loader, loop_position, unused, batches_in_progress)
            unused_of_loaders.append(unused_of_loader)
            states.append(_state_before(loader, unused_of_loader))

        position["used_up"] = exhausted
        position["states"] = states
        position["began_again"] = batches_in_progress > 0 and _may_have_begun_again(
            loaders, unused_of_loaders, exhausted, loop_position
        )

    # Gradients of an incomplete step.
    if module_accumulates or is_inside_step(trainer, loop_position):
        step = incomplete_step(trainer)
        if step is None:
            position["step_is_lost"] = True
        else:
            position["step"] = step
            position["step_in_work"] = batches_in_progress > 0
    return to_plain(position)


def facade_position(trainer: Trainer) -> object:
    """Return the position as in `data_state_*.pth`, in whole steps.

    It allows the Trainer API to resume from folders written under Lightning. In a training of the
    Trainer API itself, each Lightning batch is a full window.

    Returns:
        Plain values; None unless there is one loader, and that is an `EpochLoader`.
    """
    loader = trainer.train_dataloader
    loop_position = current_loop_position(trainer)
    batches = trainer.num_training_batches
    if isinstance(loader, WindowLoader):
        # Lightning's batches are windows, each of which is a step.
        accumulation = loader.accumulation
        batches_of_step = 1
        is_sized = True
        is_between_batches = True
        loader = loader.loader
    else:
        accumulation = trainer.accumulate_grad_batches
        batches_of_step = accumulation
        is_sized = batches != float("inf")
        is_between_batches = _batches_in_progress(trainer) == 0
    if not isinstance(loader, EpochLoader):
        return None

    # The length of a stream is only known at its end. Before that, at least one more window
    # follows.
    done = loop_position.done // batches_of_step
    windows = done + 1
    if is_sized:
        windows = math.ceil(batches / batches_of_step)
    elif loop_position.at_end:
        windows = math.ceil(loop_position.done / batches_of_step)
    if loop_position.at_end or loop_position.done >= batches:
        done = windows

    # Within a step, the Trainer API counts from the start of the epoch.
    loader_state = None
    if is_sized and is_between_batches and loop_position.done % batches_of_step == 0:
        loader_state = _if_plain(loader.state_dict())
    state: dict[str, Any] = {
        "epoch": loop_position.epoch,
        "done": done,
        "loader": loader_state,
        "windows": windows,
        "layout": {
            "world_size": trainer.world_size,
            "batch_size": loader.samples_per_round // trainer.world_size,
            "accumulation": accumulation,
        },
    }
    return to_plain(state)


def from_facade_position(stored: Any, loop_position: LoopPosition) -> dict[str, Any]:
    """Convert a result of `facade_position` to the form of `position_state`.

    Args:
        stored: the entry of the checkpoint, or None.
        loop_position: where the checkpoint was written.

    Returns:
        The position; an empty dict if nothing is stored, or if it is not at this position.
    """
    if stored is None:
        return {}
    position: dict[str, Any] = from_plain(stored)
    layout = position["layout"]
    next_batch = (position["epoch"], position["done"] * layout["accumulation"])
    if position["done"] >= position["windows"]:
        next_batch = (position["epoch"] + 1, 0)

    # Ignore a position that differs from Lightning's own counters, because it was saved at another
    # time.
    loader_state = position["loader"]
    has_state = loader_state is not None and "handed_out" in loader_state
    if next_batch != _next_batch(loop_position) or not has_state:
        return {}
    samples = layout["world_size"] * layout["batch_size"]
    return {
        "layout": {"batches": [samples]},
        "states": [loader_state],
        "unused": 0,
        "used_up": [],
    }


def is_inside_of_epoch(loop_position: LoopPosition, position: Mapping[str, object]) -> bool:
    """Return whether the loops resume inside an epoch, or at its end.

    This may be before the first batch is done, if the loaders have yielded a batch that was
    interrupted, or that Lightning has prefetched from a loader without a length.
    """
    return loop_position.done > 0 or bool(position.get("unused"))


def restore_position(
    trainer: Trainer,
    loop_position: LoopPosition,
    position: Mapping[str, Any],
    other_states: list[dict[str, Any]],
) -> None:
    """Position the loaders, and restore an incomplete step.

    Inside an epoch this starts the iteration of the loaders. At the start of an epoch the caller
    must start it, after the random generators are restored, because torch's loaders draw from them.

    Args:
        trainer: the trainer, whose loops are at the position and about to run.
        loop_position: where the checkpoint was written.
        position: the result of `position_state`; may be empty.
        other_states: loader states that Lightning has saved, if none of the loaders is an
            `EpochLoader`.
    """
    loaders = train_loaders(trainer)
    next_epoch, _ = _next_batch(loop_position)
    for loader in loaders:
        if isinstance(loader, EpochLoader):
            # Lightning has already started to read if the loader has no length.
            loader.shut_down_workers()
            _warn_of_persistent_workers(trainer, loader)
            _warn_of_reloaded_streams(trainer, loader)
        else:
            _set_epoch_of_samplers(loader, next_epoch)

    states = list(position.get("states", [None] * len(loaders)))
    if len(states) != len(loaders):
        _log.warning(
            "The checkpoint was written with %s training loaders, but there are %s now. No state "
            "of a loader is restored; each skips as many batches as were trained in this epoch. "
            "Resume with the same loaders.",
            len(states),
            len(loaders),
        )
        states = [None] * len(loaders)

    is_next_epoch = loop_position.at_end or not is_inside_of_epoch(loop_position, position)
    if not epoch_loaders(trainer):
        _resume_other_loaders(trainer, other_states, position, is_next_epoch)
    elif is_next_epoch:
        _resume_loaders(trainer, loop_position, states, is_next_epoch)
    else:
        states_to_load = _states_in_current_batches(trainer, loop_position, position, states)
        _resume_loaders(trainer, loop_position, states_to_load, is_next_epoch)
        set_exhausted_loaders(trainer, position.get("used_up", []))
        if position.get("began_again"):
            _log.warning(
                "The checkpoint was written in the middle of a batch, just before a stream began "
                "again: the last batch before that may be left out. Resume from a checkpoint that "
                "was written between two batches."
            )
    _restore_step(trainer, position)


def _restore_step(trainer: Trainer, position: Mapping[str, Any]) -> None:
    """Restore the gradients of an incomplete step; warn if they are missing or inexact."""
    # Gradients can only be restored with the same number of processes and batches.
    if "step" in position and _layout(trainer) == position["layout"]:
        load_step(trainer.lightning_module, position["step"])
    if position.get("step_is_lost"):
        _log.warning(
            "The checkpoint was written inside a step of %s batches, but without their gradients, "
            "which %s does not expose: the step is taken without them. Resume from a checkpoint "
            "of a whole step.",
            position["layout"]["accumulation"],
            type(trainer.strategy).__name__,
        )
    if position.get("step_in_work"):
        _log.warning(
            "The checkpoint was written in the middle of a batch of an accumulated step: its "
            "gradients may include that batch, which is trained again. Resume from a checkpoint "
            "that was written between two batches."
        )


def _resume_loaders(
    trainer: Trainer, loop_position: LoopPosition, states: list[Any], is_next_epoch: bool
) -> None:
    """Let each loader continue with its next batch, or with the epoch after the complete ones."""
    epoch, _ = _next_batch(loop_position)
    for loader, state in zip(train_loaders(trainer), states, strict=True):
        if isinstance(loader, EpochLoader):
            if is_next_epoch and state is None:
                loader.set_epoch(epoch)
            elif is_next_epoch:
                loader.load_state_dict(before_epoch(state, epoch))
            elif state is None:
                # Without a state, skip the trained batches.
                loader.load_state_dict(position_at(epoch, loop_position.done))
            else:
                loader.load_state_dict(state, inside_epoch=True)
        elif state is not None and is_next_epoch and _has_order_to_restore(loader):
            loader.load_state_dict(state)
            # Start the completed epoch, so that the next iteration is the next epoch.
            iter(loader)
        elif state is not None and not is_next_epoch and _is_stateful(loader):
            loader.load_state_dict(state)
    if not is_next_epoch:
        restart_loaders(trainer)


def _resume_other_loaders(
    trainer: Trainer,
    states: list[dict[str, Any]],
    position: Mapping[str, Any],
    is_next_epoch: bool,
) -> None:
    """Resume loaders of other libraries from their own states.

    Warns about batches that were read but not trained.
    """
    if position.get("unused"):
        _log.warning(
            "%s batches had been read and not trained when the checkpoint was written: it was in "
            "the middle of a batch, or Lightning had read a batch ahead from a loader without a "
            "length. They are skipped, or other batches are read. Read the data with a DataModule "
            "or build_loader instead.",
            position["unused"],
        )
    stateful = [loader for loader in train_loaders(trainer) if _is_stateful(loader)]
    if not states or (is_next_epoch and not all(map(_has_order_to_restore, stateful))):
        return

    if len(states) != len(stateful):
        _log.warning(
            "The checkpoint has the states of %s training loaders, but %s loaders have a state "
            "now. No state is restored, and the loaders begin their epoch again. Resume with the "
            "same loaders.",
            len(states),
            len(stateful),
        )
        return
    if any(map(_has_order_without_state, stateful)):
        _log.warning(
            "Lightning shares the samples of a StatefulDataLoader between processes by a sampler "
            "that wraps the loader's own. Its order is not saved, so other samples may follow. "
            "Read the data with a DataModule or build_loader, or pass a DistributedSampler and "
            "use_distributed_sampler=False."
        )
    for loader, state in zip(stateful, states, strict=True):
        loader.load_state_dict(state)

    if not is_next_epoch:
        restart_loaders(trainer)
        return
    # Begins the epoch that is complete, so that the next iteration is of the next one.
    for loader in stateful:
        iter(loader)


def _states_in_current_batches(
    trainer: Trainer, loop_position: LoopPosition, position: Mapping[str, Any], states: list[Any]
) -> list[Any]:
    """Convert the states to batches of the current size.

    If that is not possible, warns that samples are trained twice or not at all.
    """
    layout_before = position.get("layout", {})
    before = layout_before.get("batches")
    now = _layout(trainer)["batches"]
    if before is None or len(before) != len(now):
        return states

    # With several workers, batches alternate between them, so another number of processes also
    # changes the order.
    state: dict[str, Any] | None = states[0]
    is_alone = len(now) == 1
    alternates = is_alone and _alternates(trainer, state)
    has_same_processes = layout_before.get("world_size") in (None, trainer.world_size)
    if before == now and (has_same_processes or not alternates):
        return states

    # A single loader continues with the next sample if a batch of the current size begins there.
    if is_alone and "step" not in position and state is not None and not alternates:
        done, remainder = divmod(loop_position.done * before[0], now[0])
        if remainder == 0:
            set_batches_done(trainer, done)
            return [with_other_batches(state, done)]

    _log.warning(
        "The training resumes in the middle of an epoch with another batch size or number of "
        "processes (a batch of all processes has %s samples instead of %s): samples of this epoch "
        "are trained twice, or not at all. Resume with the same batch size and number of "
        "processes, or from the end of an epoch.",
        now,
        before,
    )
    return states


def _alternates(trainer: Trainer, state: dict[str, Any] | None) -> bool:
    """Return whether batches of several workers alternated in the stream of the only loader.

    Args:
        trainer: the trainer with the loader.
        state: the state of the loader.
    """
    (loader,) = train_loaders(trainer)
    is_stream = isinstance(getattr(loader, "dataset", None), IterableDataset)
    return is_stream and state is not None and workers_in(state) > 1


def _layout(trainer: Trainer) -> dict[str, Any]:
    """Return the number of processes, batches per step, and samples per batch of all processes."""
    loaders = train_loaders(trainer)
    return {
        "world_size": trainer.world_size,
        "batches": [getattr(loader, "samples_per_round", None) for loader in loaders],
        "accumulation": trainer.accumulate_grad_batches,
    }


def _count_unused(
    loader: object, loop_position: LoopPosition, unused: int, batches_in_progress: int
) -> int:
    """Return how many batches a loader yielded in this epoch that no step has used.

    Args:
        loader: a training loader that was not restarted in this epoch.
        loop_position: the loop position of the training.
        unused: number of combined batches of all loaders that were read but not trained.
        batches_in_progress: 1 within a batch, otherwise 0.
    """
    if not isinstance(loader, EpochLoader):
        return unused
    read = max(loader.batches_yielded - loop_position.done, 0)
    # Lightning may have read one more batch of this loader before it noticed that another loader
    # was exhausted.
    if batches_in_progress:
        return read
    # The loader may have been exhausted before the prefetched batches.
    return min(unused, read)


def _may_have_begun_again(
    loaders: list[Any],
    unused_of_loaders: list[int],
    exhausted: list[bool],
    loop_position: LoopPosition,
) -> bool:
    """Return whether a loader may have restarted since the batch in progress.

    In this case it has no state for that batch. At the end of an epoch, Lightning reads the loaders
    before the longest one again before it finds out which one is the longest.
    """
    if all(exhausted):
        if len(loaders) == 1:
            return False

        # No loader was read again if the first one is the longest.
        batches_yielded = getattr(loaders[0], "batches_yielded", None)
        is_first_longest = loop_position.done > 0 and batches_yielded == loop_position.done + 1
        return not is_first_longest

    for loader, unused, is_exhausted in zip(loaders, unused_of_loaders, exhausted, strict=True):
        if is_exhausted and isinstance(loader, EpochLoader) and loader.batches_yielded < unused:
            return True
    return False


def _state_before(loader: Any, unused: int) -> dict[str, object] | None:
    """Return the state of a loader before its last batches.

    Returns None if it has no state, or a state that cannot be stored in a checkpoint.

    Args:
        loader: a training loader.
        unused: number of batches, yielded last, that no step has used.
    """
    if isinstance(loader, EpochLoader):
        return _if_plain(loader.state_dict(min(unused, loader.batches_yielded)))
    if _is_stateful(loader):
        return _if_plain(loader.state_dict())
    return None


def _has_order_without_state(loader: object) -> bool:
    """Return whether Lightning has wrapped the sampler of a loader to shard its samples."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    sampler = getattr(batch_sampler, "sampler", None)
    return is_instance(
        sampler, "lightning.fabric.utilities.distributed", "DistributedSamplerWrapper"
    )


def _set_epoch_of_samplers(loader: object, epoch: int) -> None:
    """Set the epoch of samplers that shuffle by it.

    Lightning sets it too late for loaders that prefetch.
    """
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = (getattr(loader, "sampler", None), getattr(batch_sampler, "sampler", None))
    for sampler in samplers:
        set_epoch = getattr(sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


def _if_plain(state: dict[str, Any]) -> dict[str, object] | None:
    """Return a state if it can be stored in a checkpoint; otherwise warn and return None."""
    try:
        to_plain(state)
    except UnsafeValueError as error:
        _log.warning(
            "The state of the data loader is not saved, so a resumed training may read other "
            "samples: %s. Return only tensors and plain values from state_dict().",
            error,
        )
        return None
    return state


def _batches_in_progress(trainer: Trainer) -> int:
    """Return 1 within a batch, otherwise 0."""
    current: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return current.ready - current.processed


def _next_batch(loop_position: LoopPosition) -> tuple[int, int]:
    """Return the epoch and the batch to resume from."""
    if loop_position.at_end:
        return loop_position.epoch + 1, 0
    return loop_position.epoch, loop_position.done


def _is_stateful(loader: object) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def _has_order_to_restore(loader: object) -> bool:
    """Return whether the order of later epochs depends on the loader's state at the end of one.

    Other loaders must not be restored to such a state: no batches remain in it, so an epoch would
    be skipped.
    """
    return is_torchdata_loader(loader)


def _warn_of_persistent_workers(trainer: Trainer, loader: EpochLoader) -> None:
    """Warn about persistent workers, whose states at the end of an epoch are unknown."""
    limit = trainer.limit_train_batches
    is_cut_short = not isinstance(limit, float) or limit < 1
    if loader.persistent_workers and (trainer.enable_validation or is_cut_short):
        _log.warning(
            "persistent_workers=True: the resumed training may draw other random numbers than an "
            "uninterrupted one, as the workers of validations are started again, and workers had "
            "read ahead in epochs that limit_train_batches cuts short. Set it to False for exact "
            "resumption."
        )


def _warn_of_reloaded_streams(trainer: Trainer, loader: EpochLoader) -> None:
    """Warn about streams that Lightning reloads, because it then reads their first batch twice."""
    interval: int = getattr(trainer, "reload_dataloaders_every_n_epochs", 0)
    if interval and isinstance(loader.dataset, IterableDataset):
        _log.warning(
            "reload_dataloaders_every_n_epochs=%s: the resumed training may draw other random "
            "numbers than an uninterrupted one, because Lightning begins a stream twice in the "
            "epochs in which it reloads it. Set it to 0 for exact resumption.",
            interval,
        )
