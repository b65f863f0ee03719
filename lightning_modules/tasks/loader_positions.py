"""Position of a training under Lightning in its data: what a checkpoint holds of the loaders, and
the way back to it.

Each process has its own. A training may have several loaders, in a dict, a list or a
`CombinedLoader`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from ..common.libraries import is_instance
from ..common.safe_serialization import UnsafeValueError, from_plain, to_plain
from ..data.epoch_loader import EpochLoader
from ..data.loader_state import before_epoch, position_at, with_other_batches
from ..internals.lightning_import import Trainer
from ..internals.loop_states import (
    LoopPosition,
    count_read_ahead,
    current_loop_position,
    ends_with_shortest_loader,
    loaders_used_up,
    restart_loaders,
    set_batches_done,
    set_loaders_used_up,
    train_loaders,
)
from ..training.accumulation import WindowLoader
from .step_window import is_inside_step, load_step, step_so_far

_log = logging.getLogger(__name__)


def epoch_loaders(trainer: Trainer) -> list[EpochLoader]:
    """Return those loaders of the training whose position is saved and restored here."""
    return [loader for loader in train_loaders(trainer) if isinstance(loader, EpochLoader)]


def position_state(trainer: Trainer) -> Any:
    """Return the position in the loaders, and in a step that is not complete, in plain values and
    tensors.

    A loader that began again has no state of the batches before that; `began_again` tells whether
    one may be unused.
    """
    loop_position = current_loop_position(trainer)
    in_work = _in_work(trainer)
    unused = count_read_ahead(trainer) + in_work
    position: dict[str, Any] = {"layout": _layout(trainer), "unused": unused}
    if epoch_loaders(trainer):
        loaders = train_loaders(trainer)
        used_up = loaders_used_up(trainer) or [False] * len(loaders)
        position["used_up"] = used_up
        counts: list[int] = []
        for loader, is_used_up in zip(loaders, used_up, strict=True):
            if is_used_up:
                counts.append(unused)
            else:
                counts.append(_unused_of(loader, loop_position, unused, in_work))

        position["states"] = [
            _state_of(loader, count) for loader, count in zip(loaders, counts, strict=True)
        ]
        position["began_again"] = in_work > 0 and _began_again(
            loaders, counts, used_up, loop_position
        )

    # Gradients of a step that is not complete.
    if is_inside_step(trainer, loop_position):
        step = step_so_far(trainer)
        if step is None:
            position["step_is_lost"] = True
        else:
            position["step"] = step
            position["step_in_work"] = in_work > 0
    return to_plain(position)


def facade_position(trainer: Trainer) -> Any:
    """Return the position as in `data_state_*.pth`, in whole steps; None unless an `EpochLoader`
    alone is read.

    So the Trainer API resumes from folders of Lightning. It reads whole windows itself, in which
    case only they count.
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
        is_between_batches = _in_work(trainer) == 0
    if not isinstance(loader, EpochLoader):
        return None

    # Of a stream it is only known that it has not ended.
    done = loop_position.done // batches_of_step
    windows = done + 1
    if is_sized:
        windows = math.ceil(batches / batches_of_step)
    if loop_position.done >= batches:
        done = windows

    # In the middle of a step the Trainer API counts from the start of the epoch.
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


def from_facade_position(written: Any, loop_position: LoopPosition) -> dict[str, Any]:
    """Return what `facade_position` gave as a `position_state`, if it is that of `loop_position`;
    otherwise an empty one.
    """
    if written is None:
        return {}
    stored: dict[str, Any] = from_plain(written)
    layout = stored["layout"]
    next_batch = (stored["epoch"], stored["done"] * layout["accumulation"])
    if stored["done"] >= stored["windows"]:
        next_batch = (stored["epoch"] + 1, 0)

    state = stored["loader"]
    if next_batch != _next(loop_position) or state is None or "handed_out" not in state:
        return {}
    samples = layout["world_size"] * layout["batch_size"]
    return {"layout": {"batches": [samples]}, "states": [state], "unused": 0, "used_up": []}


def is_inside_of_epoch(loop_position: LoopPosition, position: Mapping[str, Any]) -> bool:
    """Return whether the loops continue inside of an epoch, at whose end they may be.

    The loaders may have handed out batches before the first one is done: one that was interrupted,
    and one that Lightning reads ahead of a loader without a length.
    """
    return loop_position.done > 0 or bool(position.get("unused"))


def restore_position(
    trainer: Trainer,
    loop_position: LoopPosition,
    position: Mapping[str, Any],
    other_states: list[dict[str, Any]],
) -> None:
    """Let the loaders resume at a position, and restore a step that was not complete.

    Inside of an epoch the iteration of the loaders begins here. It is left to the caller where a
    new epoch begins: a loader of torch draws then, which the generators of the checkpoint have not
    yet.

    Args:
        trainer: its loops are settled at the position, and are about to run.
        loop_position: where the checkpoint was written.
        position: from `position_state`, may be empty.
        other_states: what Lightning has saved of loaders, where none is an `EpochLoader`.
    """
    loaders = train_loaders(trainer)
    for loader in loaders:
        if isinstance(loader, EpochLoader):
            # Lightning has read already where there is no length.
            loader.shut_down_workers()
            _warn_of_kept_workers(trainer, loader)
        else:
            _set_epoch_of_samplers(loader, _next(loop_position)[0])

    states = list(position.get("states", [None] * len(loaders)))
    if len(states) != len(loaders):
        _log.warning(
            "The checkpoint was written with %s training loaders, and there are %s now: none is "
            "restored to its state, and each skips as many batches as were trained in this "
            "epoch.",
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
        _resume_loaders(
            trainer,
            loop_position,
            _in_present_batches(trainer, loop_position, position, states),
            is_next_epoch,
        )
        set_loaders_used_up(trainer, position.get("used_up", []))
        _warn_of_unnoticed_end(trainer, loop_position, position, states)
        if position.get("began_again"):
            _log.warning(
                "The checkpoint was written in the middle of a batch, and a stream had begun again "
                "just after it: its last batch before that may be left out. Resume from a "
                "checkpoint of a whole batch."
            )

    if "step" in position and _layout(trainer) == position["layout"]:
        load_step(trainer.lightning_module, position["step"])
    if position.get("step_is_lost"):
        _log.warning(
            "The checkpoint was written inside of a step of %s batches, and %s had kept their "
            "gradients to itself: the step is taken without them. Resume from a checkpoint of a "
            "whole step.",
            position["layout"]["accumulation"],
            type(trainer.strategy).__name__,
        )
    if position.get("step_in_work"):
        _log.warning(
            "The checkpoint was written in the middle of a batch of an accumulated step: the "
            "gradients that it holds may be those of that batch too, which is trained again. "
            "Resume from a checkpoint of a whole batch."
        )


def _warn_of_unnoticed_end(
    trainer: Trainer, loop_position: LoopPosition, position: Mapping[str, Any], states: list[Any]
) -> None:
    """Warn where an epoch has ended and Lightning does not know, as a stream is shorter than the
    other loaders.

    In "min_size" Lightning takes the shortest length, and finds out by reading that a stream is
    shorter.
    """
    if not ends_with_shortest_loader(trainer) or position.get("unused"):
        return
    if any(
        state is not None and state.get("ended") and state["handed_out"] == loop_position.done
        for state in states
    ):
        _log.warning(
            "The checkpoint was written after the last batch of a stream, of which Lightning did "
            'not know that it ends the epoch in the mode "min_size": other samples may follow. '
            "Resume from a checkpoint of another batch."
        )


def _resume_loaders(
    trainer: Trainer, loop_position: LoopPosition, states: list[Any], is_next_epoch: bool
) -> None:
    """Let each loader hand out its next batch, or begin the epoch after those that are complete."""
    epoch, _ = _next(loop_position)
    for loader, state in zip(train_loaders(trainer), states, strict=True):
        if isinstance(loader, EpochLoader):
            if is_next_epoch and state is None:
                loader.set_epoch(epoch)
            elif is_next_epoch:
                loader.load_state_dict(before_epoch(state, epoch))
            elif state is None:
                loader.load_state_dict(position_at(epoch, loop_position.done))
            else:
                loader.load_state_dict(state, inside_epoch=True)
        elif state is not None and is_next_epoch and _has_order_to_restore(loader):
            loader.load_state_dict(state)
            # This iteration is of the epoch that is complete, so that the next one is of the next
            # epoch.
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
    """Let loaders of other libraries resume by their own states; warn of batches that were read
    and not trained.
    """
    if position.get("unused"):
        _log.warning(
            "%s batches had been read and not trained when the checkpoint was written: in the "
            "middle of a batch, or of a loader without a length, which Lightning reads one batch "
            "ahead. They are skipped, or other ones are read. Read the data with a DataModule or "
            "build_loader instead.",
            position["unused"],
        )
    stateful = [loader for loader in train_loaders(trainer) if _is_stateful(loader)]
    if not states or (is_next_epoch and not all(map(_has_order_to_restore, stateful))):
        return

    if len(states) != len(stateful):
        _log.warning(
            "The checkpoint has the states of %s training loaders, and %s have a state now: none "
            "is restored, and they begin their epoch again.",
            len(states),
            len(stateful),
        )
        return
    if any(map(_has_order_without_state, stateful)):
        _log.warning(
            "Lightning shares the samples of a StatefulDataLoader between processes by a sampler "
            "around its own, whose order is in no checkpoint: other samples may follow. Read the "
            "data with a DataModule or build_loader, or pass a DistributedSampler and "
            "use_distributed_sampler=False."
        )
    for loader, state in zip(stateful, states, strict=True):
        loader.load_state_dict(state)

    if not is_next_epoch:
        restart_loaders(trainer)
        return
    # This iteration is of the epoch that is complete, so that the next one is of the next epoch.
    for loader in stateful:
        iter(loader)


def _in_present_batches(
    trainer: Trainer, loop_position: LoopPosition, position: Mapping[str, Any], states: list[Any]
) -> list[Any]:
    """Return the states in batches of the present size; warn if samples are trained twice, or
    not at all.
    """
    before = position.get("layout", {}).get("batches")
    now = _layout(trainer)["batches"]
    if before is None or before == now or len(before) != len(now):
        return states

    # One loader continues with the next sample if whole batches of the present size end there.
    state: dict[str, Any] | None = states[0]
    is_alone = len(now) == 1 and "step" not in position
    if is_alone and state is not None:
        done, rest = divmod(loop_position.done * before[0], now[0])
        if rest == 0:
            set_batches_done(trainer, done)
            return [with_other_batches(state, done)]

    _log.warning(
        "The training resumes in the middle of an epoch with another batch size or number of "
        "processes (%s samples a batch of all processes instead of %s): samples of this epoch are "
        "trained twice, or not at all. Resume with the same batch size and processes, or from the "
        "end of an epoch.",
        now,
        before,
    )
    return states


def _layout(trainer: Trainer) -> dict[str, Any]:
    """Return the samples in a batch of each loader, of all processes together, and what a step
    is made of.
    """
    loaders = train_loaders(trainer)
    return {
        "world_size": trainer.world_size,
        "batches": [getattr(loader, "samples_per_round", None) for loader in loaders],
        "accumulation": trainer.accumulate_grad_batches,
    }


def _unused_of(loader: Any, loop_position: LoopPosition, unused: int, in_work: int) -> int:
    """Return how many batches a loader handed out in this epoch that no step was taken on.

    Args:
        loader: one of the training, not begun again in this epoch.
        loop_position: of the training.
        unused: batches that were read of all loaders together, and not trained.
        in_work: 1 in the middle of a batch, otherwise 0.
    """
    if not isinstance(loader, EpochLoader):
        return unused
    read = max(loader.handed_out - loop_position.done, 0)
    # it may have been read once more before another one ended, with which the epoch does
    if in_work:
        return read
    return min(unused, read)  # it may have ended before those that were read ahead


def _began_again(
    loaders: list[Any], counts: list[int], used_up: list[bool], loop_position: LoopPosition
) -> bool:
    """Return whether a loader may have begun again since the batch in work, of which it has no
    state then.

    At the end of an epoch Lightning finds which loader is the longest by reading those before it
    once more.
    """
    if all(used_up):
        is_first_longest = (
            loop_position.done > 0
            and getattr(loaders[0], "handed_out", None) == loop_position.done + 1
        )
        return len(loaders) > 1 and not is_first_longest
    return any(
        is_used_up and isinstance(loader, EpochLoader) and loader.handed_out < count
        for loader, count, is_used_up in zip(loaders, counts, used_up, strict=True)
    )


def _state_of(loader: Any, unused: int) -> Any:
    """Return the state of a loader; None if it has none, or one that a checkpoint cannot hold.

    Args:
        loader: one of the training.
        unused: batches that it handed out last, and that no step was taken on.
    """
    if isinstance(loader, EpochLoader):
        return _if_plain(loader.state_dict(min(unused, loader.handed_out)))
    if _is_stateful(loader):
        return _if_plain(loader.state_dict())
    return None


def _has_order_without_state(loader: Any) -> bool:
    """Return whether Lightning has wrapped the sampler of a loader, which draws its order, to
    share it out.
    """
    batch_sampler = getattr(loader, "batch_sampler", None)
    sampler = getattr(batch_sampler, "sampler", None)
    return is_instance(
        sampler, "lightning.fabric.utilities.distributed", "DistributedSamplerWrapper"
    )


def _set_epoch_of_samplers(loader: Any, epoch: int) -> None:
    """Set the epoch of samplers that shuffle by it, as Lightning does too late for those that
    read ahead.
    """
    batch_sampler: Any = getattr(loader, "batch_sampler", None)
    samplers: list[Any] = [
        getattr(loader, "sampler", None),
        getattr(batch_sampler, "sampler", None),
    ]
    for sampler in samplers:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)


def _if_plain(state: dict[str, Any]) -> dict[str, Any] | None:
    """Return a state that a checkpoint can hold; of others None, with a warning."""
    try:
        to_plain(state)
    except UnsafeValueError as error:
        _log.warning(
            "The state of the data loader is not saved, as it holds what a checkpoint cannot: %s.",
            error,
        )
        return None
    return state


def _in_work(trainer: Trainer) -> int:
    """Return 1 in the middle of a batch, otherwise 0."""
    current: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return current.ready - current.processed


def _next(loop_position: LoopPosition) -> tuple[int, int]:
    """Return epoch and batch to resume at."""
    if loop_position.at_end:
        return loop_position.epoch + 1, 0
    return loop_position.epoch, loop_position.done


def _is_stateful(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def _has_order_to_restore(loader: Any) -> bool:
    """Return whether the order of later epochs depends on the state of the loader at the end of
    one.

    Other loaders may have no batch left in such a state, and lose an epoch.
    """
    return is_instance(loader, "torchdata.stateful_dataloader", "StatefulDataLoader")


def _warn_of_kept_workers(trainer: Trainer, loader: EpochLoader) -> None:
    """Warn of persistent workers, whose states at the end of an epoch are not known."""
    limit = trainer.limit_train_batches
    is_cut_short = not isinstance(limit, float) or limit < 1
    if loader.persistent_workers and (trainer.enable_validation or is_cut_short):
        _log.warning(
            "persistent_workers=True: the resumed training may draw other random numbers than an "
            "uninterrupted one, as workers of validations begin anew, and those of epochs that "
            "limit_train_batches cuts short had read ahead."
        )
