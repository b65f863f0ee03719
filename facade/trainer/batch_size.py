"""`auto_find_batch_size`: restart a training with smaller batches when it runs out of memory."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ...lightning_modules.checkpoints.writing import snapshot
from ...lightning_modules.common.seeding import capture_rng_state, restore_rng_state
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.training.out_of_memory import (
    OutOfMemoryConsensus,
    is_out_of_memory,
    release_memory,
)
from ..arguments.parallelism import samples_of_rank

if TYPE_CHECKING:
    from .. import Trainer

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class BatchSizeFinder:
    """Reduce the batch size per device until the training fits into memory.

    As in the reference, each attempt takes nine tenths of the samples, rounded down (64, 57, 51,
    and so on), so that steps get smaller and more numerous. With `keep_effective_batch_size` it
    takes half of the samples, and twice the accumulation.

    The training restarts from its initial state, or the checkpoint, so that it ends with the
    weights of a run that had the smaller batch from the start; the reference continues with the
    weights of the failed attempt. So trainable weights, buffers and optimizer state are copied to
    host memory. State of datasets and callbacks is not restored, except for callbacks that are an
    `ExportableState`; existing checkpoints stay until they are overwritten.

    The batch size found is `state.train_batch_size`, also in checkpoints; the next `train` starts
    with it. With `keep_effective_batch_size`, `trainer.args` is an adjusted copy of the arguments
    during the training.

    Args:
        trainer: the Trainer.
    """

    trainer = WeakAttribute["Any"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def until_it_fits(self, attempt: Callable[[], Result], checkpoint: str | None) -> Result:
        """Train, retrying with smaller batches if `auto_find_batch_size` is set.

        Args:
            attempt: runs the whole training.
            checkpoint: the folder to resume from.

        Raises:
            torch.OutOfMemoryError: not even one sample fits.
            ValueError: the model is sharded, so that the training cannot restart.
        """
        trainer = self.trainer
        if not trainer.args.auto_find_batch_size:
            return attempt()
        self._require_whole_models()
        self.apply_found_size(checkpoint)
        given, start = trainer.args, _InitialState(trainer)
        try:
            while True:
                self._apply_size(given)
                try:
                    return attempt()
                except Exception as error:
                    if not self._may_try_again(error, start):
                        raise
                    if self._smaller_size() < 1:
                        size = (
                            "down from "
                            f"per_device_train_batch_size={given.per_device_train_batch_size}"
                        )
                        found = "No executable batch size found, reached zero"
                        raise torch.OutOfMemoryError(
                            f"{found}: not even one sample fits, {size}."
                        ) from error
                    reason = str(error).partition("\n")[0]
                # Outside of the except block, where the tensors in the frames of the error are
                # released.
                start.restore(trainer)
                self._apply_smaller_size(given, reason, checkpoint)
        finally:
            trainer.args = given
            trainer.accelerator.apply_accumulation(given)

    def consensus(self) -> OutOfMemoryConsensus:
        """Return the consensus by which all processes raise an out-of-memory error together."""
        args = self.trainer.args
        is_shared = args.auto_find_batch_size and args.world_size > 1
        shares_buffers = args.ddp_broadcast_buffers is not False
        return OutOfMemoryConsensus(
            args.device if is_shared else None, shares_buffers=shares_buffers
        )

    def apply_found_size(self, checkpoint: str | None) -> None:
        """Start with the batch size of a checkpoint, unless the arguments have a smaller one."""
        trainer = self.trainer
        stored = (
            None
            if checkpoint is None
            else trainer._restorer.read_state(checkpoint).train_batch_size
        )
        trainer._train_batch_size = min(
            trainer._train_batch_size, stored or trainer._train_batch_size
        )

    def _require_whole_models(self) -> None:
        strategy = self.trainer.plan.strategy
        if not strategy.can_restart:
            said = "auto_find_batch_size=True needs a whole copy of the model in each process"
            raise ValueError(f"{said}, but the arguments ask for {strategy.name}. Leave it out.")

    def _smaller_size(self) -> int:
        """Return the next size, 0 after the smallest; a multiple of the processes that split a
        batch.
        """
        size = self.trainer._train_batch_size
        unit = size // samples_of_rank(self.trainer.args, size)
        smaller = size // 2 if self.trainer.keep_effective_batch_size else int(size * 0.9)
        return smaller - smaller % unit

    def _apply_size(self, given: Any) -> None:
        if not self.trainer.keep_effective_batch_size:
            return
        self.trainer.args = fitted(given, self.trainer._train_batch_size)
        self.trainer.accelerator.apply_accumulation(self.trainer.args)

    def _may_try_again(self, error: Exception, start: _InitialState) -> bool:
        """Return whether smaller batches can help; otherwise add the reason to a memory error."""
        if not is_out_of_memory(error):
            return False
        if getattr(error, "in_evaluation", False):
            said = (
                "auto_find_batch_size changes the batches of the training only: lower "
                "per_device_eval_batch_size."
            )
            # scripts look for it in the message
            error.args = (f"{error} In an evaluation; {said}", *error.args[1:])
            return False
        reason = None
        if self.trainer.args.world_size > 1 and not getattr(error, "is_shared", False):
            reason = (
                "processes agree on it in forward, backward and optimizer step only, and this was "
                "elsewhere"
            )
        elif start.lost:
            reason = (
                "these weights were frozen, so not copied, and have changed: "
                f"{', '.join(start.lost[:5])}"
            )
        if reason is not None:
            error.add_note(
                f"auto_find_batch_size cannot start again: {reason}. Lower "
                "per_device_train_batch_size.",
            )
        return reason is None

    def _apply_smaller_size(self, given: Any, reason: str, checkpoint: str | None) -> None:
        trainer, before = self.trainer, self.trainer.args
        old, size = trainer._train_batch_size, self._smaller_size()
        trainer._train_batch_size = size
        if not before.should_log:
            return
        change = (
            f"a batch size of {size} instead of {old} (`Trainer.keep_effective_batch_size` keeps "
            "the samples)"
        )
        if trainer.keep_effective_batch_size:
            after = fitted(given, size)
            steps, more = before.gradient_accumulation_steps, after.gradient_accumulation_steps
            change = (
                f"per_device_train_batch_size {old} -> {size}, gradient_accumulation_steps {steps} "
                f"-> {more}, "
            )
            change += f"effective batch {effective_batch(given)} -> {effective_batch(after)}"
        start = "its beginning" if checkpoint is None else checkpoint
        logger.warning(
            "Out of memory (%s). Training starts again from %s with %s.", reason, start, change
        )


class _InitialState:
    """Snapshot of all state that a training changes."""

    def __init__(self, trainer: Trainer) -> None:
        several = trainer.args.world_size > 1 or trainer.is_model_parallel
        self._point = TrainingSnapshot(
            trainer.model, trainer.optimizer, trainer.lr_scheduler, distributed=several
        )
        self._attributes = {name: getattr(trainer, name) for name in _ATTRIBUTES}
        self._callbacks = [
            (callback, copy.deepcopy(callback.state()))
            for callback in trainer._callback_states.exportable()
        ]
        self._listed = list(trainer.callback_handler.callbacks)
        self._tokens = trainer._token_counter.pending
        scaler = trainer.accelerator.scaler
        self._scaler = None if scaler is None else scaler.state_dict()

    @property
    def lost(self) -> list[str]:
        """Return the names of weights that cannot be restored."""
        return self._point.lost

    def restore(self, trainer: Trainer) -> None:
        """Restore the state, and release the memory of the failed attempt."""
        for name, value in self._attributes.items():
            setattr(trainer, name, value)
        trainer._token_counter.pending = self._tokens
        handler = trainer.callback_handler
        handler.callbacks[:] = self._listed
        handler.optimizer, handler.lr_scheduler = trainer.optimizer, trainer.lr_scheduler
        handler.train_dataloader = None
        for callback, state in self._callbacks:
            for name, value in copy.deepcopy({**state["args"], **state["attributes"]}).items():
                if hasattr(callback, name):
                    setattr(callback, name, value)
        if self._scaler is not None and trainer.accelerator.scaler is not None:
            trainer.accelerator.scaler.load_state_dict(self._scaler)
        release_memory()
        self._point.restore()


_ATTRIBUTES = ("optimizer", "lr_scheduler", "control", "current_flos", "_created_lr_scheduler")


def effective_batch(args: Any) -> int:
    """Return the samples of one process in an optimizer step."""
    return args.train_batch_size * args.gradient_accumulation_steps


def fitted(args: Any, batch_size: int) -> Any:
    """Return a copy of the arguments with another batch size, and the nearest effective batch.

    Args:
        args: training arguments; not modified.
        batch_size: samples of one process in a forward pass.
    """
    copied = copy.copy(args)
    copied.per_device_train_batch_size = batch_size
    copied.gradient_accumulation_steps = max(1, round(effective_batch(args) / batch_size))
    return copied


class TrainingSnapshot:
    """Snapshot of weights, buffers, modes, optimizer, schedule and random generators.

    It holds a copy of all trainable weights, all buffers and the state of the optimizer in main
    memory. Frozen weights are not copied; if any of them was changed, `lost` names it.

    Args:
        model: the model.
        optimizer: an optimizer, or None.
        scheduler: a learning rate schedule, or None.
        distributed: several processes train, each on its device; see `capture_rng_state`.
    """

    def __init__(
        self, model: nn.Module, optimizer: Any, scheduler: Any, *, distributed: bool = False
    ) -> None:
        self.distributed = distributed
        self._modes = [(module, module.training) for module in model.modules()]
        weights = {name: weight for name, weight in model.named_parameters() if not is_lazy(weight)}
        self._trained = [
            (weight, _copied(weight)) for weight in weights.values() if weight.requires_grad
        ]
        self._frozen = {
            name: (weight, weight._version)
            for name, weight in weights.items()
            if not weight.requires_grad
        }
        self._buffers = [
            (module, name, buffer, None if buffer is None or is_lazy(buffer) else _copied(buffer))
            for module in model.modules()
            for name, buffer in module._buffers.items()
        ]
        parts = [part for part in (optimizer, scheduler) if part is not None]
        self._states = [(part, snapshot(part.state_dict())) for part in parts]
        self._generators = capture_rng_state(distributed)

    @property
    def lost(self) -> list[str]:
        """Return the names of frozen weights that have been changed since."""
        return [
            name for name, (weight, version) in self._frozen.items() if weight._version != version
        ]

    def restore(self) -> None:
        """Restore everything; gradients are set to None."""
        for module, training in self._modes:
            module.training = training
        with torch.no_grad():
            for weight, copy in self._trained:
                weight.copy_(copy)
                weight.requires_grad_(True)
            for module, name, buffer, copy in self._buffers:
                module._buffers[name] = buffer
                if buffer is not None and copy is not None:
                    buffer.copy_(copy)
        for weight, _ in self._trained:
            weight.grad = None
        for weight, _ in self._frozen.values():
            weight.requires_grad_(False).grad = None
        for part, state in self._states:
            part.load_state_dict(snapshot(state))
        restore_rng_state(self._generators, self.distributed)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)
