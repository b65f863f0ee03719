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
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.data.generators import (
    capture_generators,
    generators_of,
    restore_generators,
)
from ...lightning_modules.data.stateful_parts import part_states, restore_parts, walk_wrapped
from ...lightning_modules.data.stream_passes import StreamPasses
from ...lightning_modules.training.out_of_memory import (
    OutOfMemoryConsensus,
    is_out_of_memory,
    release_memory,
)
from ..arguments.rank_groups import samples_of_rank
from ..evaluation.sets import evaluation_parts

if TYPE_CHECKING:
    from .. import Trainer
    from ..arguments import TrainingArguments

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_REPLACED_BY_A_TRAINING = (
    "optimizer",
    "lr_scheduler",
    "control",
    "current_flos",
    "_created_lr_scheduler",
)
"""Attributes of the Trainer that are assigned during a training."""


class BatchSizeFinder:
    """Reduce the batch size per device until the training fits into memory.

    As in the reference, each attempt multiplies the batch size by 0.9, rounded down (64, 57, 51,
    ...), so the training takes more, smaller steps. With `keep_effective_batch_size` the batch size
    is halved and the number of accumulation steps is doubled.

    Each attempt restarts from the initial state, or from the checkpoint that is resumed, so the
    result equals that of a run with the smaller batch size from the start. (The reference continues
    with the weights of the failed attempt.) For this, trainable weights, buffers and the optimizer
    state are copied to CPU memory. The states of the dataset, the collator and every
    `ExportableState` callback are restored too. Existing checkpoints are kept until they are
    overwritten.

    The batch size that was found is stored in `state.train_batch_size` and in checkpoints, and the
    next call of `train` starts with it. With `keep_effective_batch_size`, `trainer.args` is
    replaced by an adjusted copy during the training.

    Args:
        trainer: the Trainer.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def run_with_fitting_batch(
        self, attempt: Callable[[], Result], checkpoint: str | None
    ) -> Result:
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
        self._require_unsharded_models()
        self.apply_found_size(checkpoint)
        args = trainer.args
        start = _InitialState(trainer)
        try:
            while True:
                self._apply_size(args)
                try:
                    return attempt()
                except Exception as error:
                    if not self._may_try_again(error, start):
                        raise
                    if self._smaller_size() < 1:
                        raise torch.OutOfMemoryError(
                            "No executable batch size found, reached zero: not even one sample "
                            "fits, down from per_device_train_batch_size="
                            f"{args.per_device_train_batch_size}."
                        ) from error
                    reason = str(error).partition("\n")[0]

                # Restore outside of the except block: while the error is alive, the frames of its
                # traceback keep the tensors of the failed attempt in memory.
                start.restore(trainer)
                self._apply_smaller_size(args, reason, checkpoint)
        finally:
            trainer.args = args
            trainer.accelerator.apply_accumulation(args)

    def consensus(self) -> OutOfMemoryConsensus:
        """Return the object that raises an out-of-memory error of one rank on all ranks."""
        args = self.trainer.args
        device = None
        if args.auto_find_batch_size and args.world_size > 1:
            device = args.device
        shares_buffers = args.ddp_broadcast_buffers is not False
        return OutOfMemoryConsensus(device, shares_buffers=shares_buffers)

    def apply_found_size(self, checkpoint: str | None) -> None:
        """Use the batch size stored in a checkpoint, unless the arguments set a smaller one."""
        if checkpoint is None:
            return
        trainer = self.trainer
        saved_size = trainer._lightrainer.restorer.read_state(checkpoint).train_batch_size
        if saved_size:
            trainer._train_batch_size = min(trainer._train_batch_size, saved_size)

    def _require_unsharded_models(self) -> None:
        strategy = self.trainer._lightrainer.strategy
        if not strategy.can_restart:
            raise ValueError(
                "auto_find_batch_size=True needs a full copy of the model in each process, but "
                f"the arguments ask for {strategy.name}. Remove auto_find_batch_size."
            )

    def _smaller_size(self) -> int:
        """Return the next smaller batch size; 0 if there is none.

        It is a multiple of the number of processes that split a batch.
        """
        size = self.trainer._train_batch_size
        unit = size // samples_of_rank(self.trainer.args, size)
        if self.trainer.keep_effective_batch_size:
            smaller = size // 2
        else:
            smaller = int(size * 0.9)
        return smaller - smaller % unit

    def _apply_size(self, args: TrainingArguments) -> None:
        """Adjust the accumulation steps of the user's arguments to the current batch size."""
        if not self.trainer.keep_effective_batch_size:
            return
        self.trainer.args = with_batch_size(args, self.trainer._train_batch_size)
        self.trainer.accelerator.apply_accumulation(self.trainer.args)

    def _may_try_again(self, error: Exception, start: _InitialState) -> bool:
        """Return whether a smaller batch can help; if not, add the reason to an out-of-memory
        error.
        """
        if not is_out_of_memory(error):
            return False
        if getattr(error, "in_evaluation", False):
            # Added to the message instead of a note, because scripts search the message.
            message = (
                f"{error} In an evaluation; auto_find_batch_size changes the batches of the "
                "training only: lower per_device_eval_batch_size."
            )
            error.args = (message, *error.args[1:])
            return False

        reason = None
        if self.trainer.args.world_size > 1 and not getattr(error, "is_shared", False):
            reason = (
                "processes agree on it in forward, backward and optimizer step only, and this was "
                "elsewhere"
            )
        elif start.changed_frozen_weights:
            reason = (
                "these weights are frozen, so they were not copied, but they have changed: "
                f"{', '.join(start.changed_frozen_weights[:5])}"
            )
        if reason is not None:
            error.add_note(
                f"auto_find_batch_size cannot restart the training: {reason}. Lower "
                "per_device_train_batch_size.",
            )
        return reason is None

    def _apply_smaller_size(
        self, args: TrainingArguments, reason: str, checkpoint: str | None
    ) -> None:
        """Set the next batch size, and log the change.

        Args:
            args: the arguments of the user.
            reason: the message of the memory error.
            checkpoint: the folder from which the training starts again; None for its beginning.
        """
        trainer = self.trainer
        old_size = trainer._train_batch_size
        size = self._smaller_size()
        trainer._train_batch_size = size
        if not args.should_log:
            return

        # With `keep_effective_batch_size`, the next attempt adjusts the accumulation accordingly.
        change = (
            f"a batch size of {size} instead of {old_size} "
            "(`Trainer.keep_effective_batch_size` keeps the samples)"
        )
        if trainer.keep_effective_batch_size:
            old_steps = trainer.args.gradient_accumulation_steps
            adjusted = with_batch_size(args, size)
            change = (
                f"per_device_train_batch_size {old_size} -> {size}, gradient_accumulation_steps "
                f"{old_steps} -> {adjusted.gradient_accumulation_steps}, effective batch "
                f"{effective_batch(args)} -> {effective_batch(adjusted)}"
            )
        logger.warning(
            "Out of memory (%s). Restarting the training from %s with %s.",
            reason,
            checkpoint or "its beginning",
            change,
        )


class _InitialState:
    """CPU copy of all state that a training modifies.

    It covers trainable weights, buffers, train/eval modes, optimizer, schedule, loss scale,
    callbacks, and random generators including those of the dataset and the collator. Frozen weights
    are not copied; `changed_frozen_weights` lists the ones that were modified.
    """

    def __init__(self, trainer: Trainer) -> None:
        model = trainer.model
        self._attributes = {name: getattr(trainer, name) for name in _REPLACED_BY_A_TRAINING}
        self._pending_tokens = trainer._lightrainer.tokens_of_run.pending
        self._modes = [(module, module.training) for module in model.modules()]

        # Copy trained weights. For frozen ones remember the version counter, which torch increments
        # with each in-place change.
        self._trained: list[tuple[nn.Parameter, torch.Tensor]] = []
        self._frozen: dict[str, tuple[nn.Parameter, int]] = {}
        for name, weight in model.named_parameters():
            if is_lazy(weight):
                continue
            if weight.requires_grad:
                self._trained.append((weight, _copied(weight)))
            else:
                self._frozen[name] = (weight, weight._version)

        for parameter in trainer._lightrainer.external_parameters.parameters:
            self._trained.append((parameter, _copied(parameter)))

        # Buffers, except uninitialized (lazy) ones.
        self._buffers: list[tuple[nn.Module, str, Any, torch.Tensor | None]] = []
        for module in model.modules():
            for name, buffer in module._buffers.items():
                copied = None
                if buffer is not None and not is_lazy(buffer):
                    copied = _copied(buffer)
                self._buffers.append((module, name, buffer, copied))

        # Optimizer, schedule and loss scale. Each attempt creates a new scaler, so only the state
        # of the scaler is kept.
        self._states = []
        for part in (trainer.optimizer, trainer.lr_scheduler):
            if part is not None:
                self._states.append((part, snapshot(part.state_dict())))
        self._scaler_state: dict[str, Any] | None = None
        if trainer.accelerator.scaler is not None:
            self._scaler_state = trainer.accelerator.scaler.state_dict()

        # Callbacks, and the states of those that have one.
        self._callbacks = list(trainer.callback_handler.callbacks)
        self._callback_states = []
        for callback in trainer._lightrainer.callback_states.exportable():
            self._callback_states.append((callback, copy.deepcopy(callback.state())))

        # Dataset and collator, and the position of a stream. Their generators may not exist yet.
        self._parts = (trainer.data_collator, trainer.train_dataset, *evaluation_parts(trainer))
        self._part_states = part_states(*self._parts)
        self._stream_passes = StreamPasses(trainer.train_dataset)
        self._stream_passes.state()
        self._missing_generators: list[tuple[Any, str]] = []
        for part in self._parts:
            for _, owner in walk_wrapped(part):
                attributes: dict[str, Any] = getattr(owner, "__dict__", {})
                missing = [name for name, value in attributes.items() if value is None]
                self._missing_generators += [(owner, name) for name in missing]

        # Random generators.
        self._distributed = trainer.args.world_size > 1 or trainer.is_model_parallel
        self._modules = dict(model.named_modules(prefix="model"))
        self._generators = capture_generators(self._modules, distributed=self._distributed)

    @property
    def changed_frozen_weights(self) -> list[str]:
        """Names of frozen weights that were modified since, and therefore cannot be restored."""
        return [
            name for name, (weight, version) in self._frozen.items() if weight._version != version
        ]

    def restore(self, trainer: Trainer) -> None:
        """Restore everything, and release the memory of the failed attempt."""
        for name, value in self._attributes.items():
            setattr(trainer, name, value)
        trainer._lightrainer.tokens_of_run.pending = self._pending_tokens

        # Callbacks. Load copies of their states, because another attempt may need the originals.
        handler = trainer.callback_handler
        handler.callbacks[:] = self._callbacks
        handler.optimizer = trainer.optimizer
        handler.lr_scheduler = trainer.lr_scheduler
        handler.train_dataloader = None
        for callback, state in self._callback_states:
            values = copy.deepcopy({**state["args"], **state["attributes"]})
            for name, value in values.items():
                if hasattr(callback, name):
                    setattr(callback, name, value)

        # Weights and buffers, without gradients.
        release_memory()
        for module, training in self._modes:
            module.training = training
        with torch.no_grad():
            for weight, copied in self._trained:
                weight.copy_(copied)
                weight.requires_grad_(True).grad = None
            for module, name, buffer, copied in self._buffers:
                module._buffers[name] = buffer
                if buffer is not None and copied is not None:
                    buffer.copy_(copied)
        for weight, _ in self._frozen.values():
            weight.requires_grad_(False).grad = None

        # Load copies of the states, because another attempt may need the originals.
        for part, state in self._states:
            part.load_state_dict(snapshot(state))
        if self._scaler_state is not None and trainer.accelerator.scaler is not None:
            trainer.accelerator.scaler.load_state_dict(self._scaler_state)

        # Dataset and collator, and random generators.
        for owner, name in self._missing_generators:
            if name in dict(generators_of(owner)):
                setattr(owner, name, None)
        restore_parts(self._part_states, *self._parts)
        self._stream_passes.load(None)
        restore_generators(self._generators, self._modules, distributed=self._distributed)


def effective_batch(args: TrainingArguments) -> int:
    """Return the number of samples that one process contributes to an optimizer step."""
    return args.train_batch_size * args.gradient_accumulation_steps


def with_batch_size(args: TrainingArguments, batch_size: int) -> TrainingArguments:
    """Return a copy of the arguments with another batch size and the closest effective batch size.

    Args:
        args: training arguments; not modified.
        batch_size: samples of one process in a forward pass.
    """
    copied = copy.copy(args)
    copied.per_device_train_batch_size = batch_size
    copied.gradient_accumulation_steps = max(1, round(effective_batch(args) / batch_size))
    return copied


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)
