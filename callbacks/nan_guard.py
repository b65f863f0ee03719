"""Skip optimizer steps whose loss or gradients are NaN or infinite."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from ._compilation import is_compiled
from ._gradients import dense_values
from ._signal_exchange import world_size
from .base import TrainerCallback
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from ..facade import TrainingArguments


logger = logging.getLogger(__name__)

Action = Literal["stop", "raise", "skip", "go_back"]

_IGNORED = -100
"""The label that losses ignore."""

_MAX_NAMED_PARAMETERS = 5
"""The number of parameters that a message names."""


class NaNGuardError(FloatingPointError):
    """Raised for NaN or infinite losses or gradients by `NaNGuardCallback(action="raise")`."""


class NaNGuardCallback(TrainerCallback):
    """Skips optimizer steps whose loss or gradients are NaN or infinite. Not in transformers.

    Checks the gradients as the optimizer would get them, summed over the micro-batches, and the
    losses that the model returned; all ranks decide the same. The loss of a micro-batch without
    labels, a mean over nothing, is only checked in a step without any labels. A skipped step counts
    in `global_step` and for the schedule, but weights, optimizer state and running statistics
    (those of batch norm) are unchanged, bit for bit. A warning reports each skipped step, with its
    losses and the parameters with bad gradients; after clipping by norm these are all parameters.

    Under fp16, infinite gradients adjust the loss scale, and the scaler skips such steps itself, so
    only the losses are checked.

    The check reads all gradients once, and synchronizes the device once a step. It cannot be done
    less often: one step later, the weights are NaN.

    Args:
        action: "stop" ends the training normally, "raise" with an error, "skip" continues with the
            next step, "go_back" too, but with weights and optimizer of the newest checkpoint of
            this training, as if all steps since then had been skipped.
        patience: with "skip" and "go_back", the number of consecutive skipped steps at which the
            training ends; None for no limit.

    Attributes:
        skipped: the skipped steps of this training, including the one that ended it.

    Raises:
        ValueError: `action` is unknown, `patience` is not positive, or with "go_back" no
            checkpoints are written.
    """

    def __init__(self, action: Action = "stop", patience: int | None = 10) -> None:
        if action not in get_args(Action):
            valid_actions = ", ".join(repr(valid) for valid in get_args(Action))
            raise ValueError(f"action is {action!r}. It must be one of {valid_actions}.")
        if patience is not None and patience < 1:
            raise ValueError(
                f"patience is {patience}, but it must be at least 1. Pass None for no limit."
            )
        self.action = action
        self.patience = patience
        self.skipped: list[int] = []
        self._consecutive_skips = 0
        self._has_loaded_state = False

        # The losses of the micro-batches of the current step, with the labels that the model got.
        self._losses: list[tuple[torch.Tensor, object]] = []
        self._hook: RemovableHandle | None = None

        # Values to restore after a skipped step.
        self._statistics: list[torch.Tensor] = []
        self._statistics_before: list[torch.Tensor] = []
        self._groups_before: list[dict[str, Any]] = []

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Record the losses that the model returns from now on."""
        self.close()
        if self.action == "go_back":
            _require_checkpoints(args)

        # The skips in a row continue in a resumed training.
        self.skipped = []
        if not self._has_loaded_state:
            self._consecutive_skips = 0
        self._has_loaded_state = False

        # Hooks of a compiled model would be compiled too: there only the gradients are checked.
        if model is None:
            return
        if not is_compiled(args, model):
            self._hook = model.register_forward_hook(self._record_loss, with_kwargs=True)
        self._statistics = _running_statistics(model)
        self._statistics_before = [buffer.clone() for buffer in self._statistics]

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Copy the running statistics: the forward pass changes them before the loss is known."""
        self._losses = []
        _copy_values(self._statistics, self._statistics_before)

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module | None = None,
        optimizer: Optimizer | None = None,
        **kwargs: object,
    ) -> None:
        """Check losses and gradients, and drop the gradients of a bad step.

        Without gradients the optimizer does nothing.

        Raises:
            NaNGuardError: with the action "raise".
        """
        parameters = _parameters(model, optimizer)
        has_loss_scaler = getattr(args, "fp16", False)
        losses = self._losses
        self._losses = []

        # Check this rank.
        gradients: list[torch.Tensor] = []
        if not has_loss_scaler:
            gradients = [weight.grad for weight in parameters if weight.grad is not None]
        is_bad = _is_bad_on_this_rank(losses, gradients)

        # Let all ranks decide the same.
        if not _is_bad_step(is_bad):
            self._consecutive_skips = 0
            return

        # Describe the step while its gradients still exist.
        bad_names = _names_of_bad_gradients(model, parameters)
        message = _description(state.global_step + 1, [loss for loss, _ in losses], bad_names)

        # Undo the step. A loss scaler that sees bad gradients skips the step itself.
        if not (has_loss_scaler and bad_names):
            for weight in parameters:
                weight.grad = None
        _copy_values(self._statistics_before, self._statistics)
        self._groups_before = [dict(group) for group in getattr(optimizer, "param_groups", ())]

        self._react(message, state, control)

    def on_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        optimizer: Optimizer | None = None,
        **kwargs: object,
    ) -> None:
        """Restore the options of the optimizer: some optimizers count steps there."""
        if optimizer is None or not self._groups_before:
            return
        for group, before in zip(optimizer.param_groups, self._groups_before, strict=True):
            group.update(before)
        self._groups_before = []

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Remove the forward hook."""
        self.close()

    def close(self) -> None:
        """Remove the forward hook, and drop the values that belong to a training."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = None
        self._losses = []
        self._statistics = []
        self._statistics_before = []
        # With the action "raise" no optimizer step follows that would use them.
        self._groups_before = []

    def state_dict(self) -> dict[str, Any]:
        """Return the number of skips in a row; {} without any."""
        if self._consecutive_skips == 0:
            return {}
        return {"consecutive_skips": self._consecutive_skips}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of a checkpoint."""
        self._consecutive_skips = state_dict.get("consecutive_skips", 0)
        self._has_loaded_state = True

    def _react(self, message: str, state: TrainerState, control: TrainerControl) -> None:
        """Apply the action to a step that was found bad.

        Args:
            message: describes the step.
            state: the state of the training.
            control: its switches are set.
        """
        self.skipped.append(state.global_step + 1)
        self._consecutive_skips += 1
        if self.action == "raise":
            raise NaNGuardError(f"{message} The weights are those before this step.")

        # "skip" and "go_back" continue, up to `patience` steps in a row.
        continues = self.action != "stop"
        patience_is_over = self.patience is not None and self._consecutive_skips >= self.patience
        if continues and patience_is_over:
            continues = False
            message += (
                f" {self.patience} steps in a row were bad, the limit of patience={self.patience}."
            )

        if continues:
            message += " Skipping the step."
            if self.action == "go_back":
                control.should_go_back = True
        else:
            message += " Training stops, with the weights before this step."
            control.should_training_stop = True
        if state.is_world_process_zero:
            logger.warning("%s", message)

    def _record_loss(
        self,
        module: nn.Module,
        inputs: tuple[object, ...],
        named_inputs: Mapping[str, object],
        output: object,
    ) -> None:
        """Record loss and labels, as a forward hook; they stay on the device."""
        if not module.training:
            return
        loss = _loss_in(output)
        if loss is None:
            return
        labels = named_inputs.get("labels")
        if labels is None and inputs:
            labels = inputs[-1]
        self._losses.append((loss.detach(), labels))


def _require_checkpoints(args: TrainingArguments) -> None:
    """Raise `ValueError` if no checkpoints with the optimizer are written, to go back to."""
    save_only_model = getattr(args, "save_only_model", None)
    if save_only_model is None:
        raise ValueError(
            "action='go_back' reads checkpoints of the Trainer, which a LightningBridge does not "
            "write. Use action='skip' or 'stop', or train with lightrainer.Trainer."
        )
    if save_only_model or args.save_strategy == "no":
        raise ValueError(
            "action='go_back' needs checkpoints of the Trainer with the optimizer, but "
            "save_strategy is 'no' or save_only_model=True. Set save_strategy='steps' and "
            "save_only_model=False, or use action='skip'."
        )


def _has_bad_value(losses: list[torch.Tensor], gradients: list[torch.Tensor]) -> bool:
    """Return whether a loss or gradient of this rank is NaN or infinite.

    Synchronizes the device once.
    """
    import torch

    # The largest absolute value of all gradients is NaN or infinite if any value is.
    local_values = [_local_values(gradient) for gradient in gradients]
    non_empty = [values for values in local_values if values.numel()]
    largest = torch.nn.utils.get_total_norm(non_empty, norm_type=float("inf"))

    is_bad = ~largest.isfinite()
    for loss in losses:
        is_bad_loss = ~loss.isfinite().all()
        is_bad = is_bad | is_bad_loss.to(is_bad.device)
    return bool(is_bad.item())


def _is_bad_on_this_rank(
    losses: list[tuple[torch.Tensor, object]], gradients: list[torch.Tensor]
) -> bool | None:
    """Return whether a loss or gradient of this rank is bad.

    Returns None if only losses without labels are bad, and this rank has no others.

    Args:
        losses: each with its labels.
        gradients: the gradients of the step.
    """
    if not _has_bad_value([loss for loss, _ in losses], gradients):
        return False
    losses_with_labels = [loss for loss, labels in losses if not _are_all_ignored(labels)]
    if _has_bad_value(losses_with_labels, gradients):
        return True
    if losses_with_labels:
        return False
    return None


def _are_all_ignored(labels: object) -> bool:
    """Return whether labels are class indices without one that counts.

    Synchronizes the device.
    """
    import torch

    if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
        return False
    return bool(labels.eq(_IGNORED).all().item())


def _is_bad_step(is_bad: bool | None) -> bool:
    """Return whether a step is bad; the same on all ranks.

    Args:
        is_bad: the result of `_is_bad_on_this_rank`.
    """
    import torch.distributed as dist

    ranks = [is_bad] * world_size()
    if len(ranks) > 1:
        dist.all_gather_object(ranks, is_bad)  # pyright: ignore[reportUnknownMemberType] - untyped in torch
    return True in ranks or ranks == [None] * len(ranks)


def _local_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor on this rank; the tensor may be sparse or sharded."""
    to_local = getattr(tensor, "to_local", None)
    local_tensor: torch.Tensor = tensor if to_local is None else to_local()
    return dense_values(local_tensor)


def _parameters(model: nn.Module | None, optimizer: Optimizer | None) -> list[torch.nn.Parameter]:
    """Return the parameters of the optimizer; without param_groups those of the model."""
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        return [] if model is None else list(model.parameters())
    parameters: list[torch.nn.Parameter] = []
    for group in groups:
        parameters.extend(group["params"])
    return parameters


def _names_of_bad_gradients(
    model: nn.Module | None, parameters: list[torch.nn.Parameter]
) -> list[str]:
    """Return the names of the parameters whose gradients are bad on this rank."""
    names: dict[int, str] = {}
    if model is not None:
        names = {id(weight): name for name, weight in model.named_parameters()}

    bad_names: list[str] = []
    for index, weight in enumerate(parameters):
        if weight.grad is None or _local_values(weight.grad).isfinite().all():
            continue
        bad_names.append(names.get(id(weight), f"parameter {index} of the optimizer"))
    return bad_names


def _description(step: int, losses: list[torch.Tensor], bad_names: list[str]) -> str:
    """Describe the losses and the bad gradients of a step on this rank."""
    facts: list[str] = []
    if losses:
        loss_values = [f"{loss.float().mean().item():.4g}" for loss in losses]
        facts.append(f"the loss is {', '.join(loss_values)}")
    if bad_names:
        listed_names = ", ".join(bad_names[:_MAX_NAMED_PARAMETERS])
        unnamed = len(bad_names) - _MAX_NAMED_PARAMETERS
        if unnamed > 0:
            listed_names += f" and {unnamed} more"
        facts.append(f"gradients are NaN or infinite in {listed_names}")
    if not facts:
        facts.append("another process has a loss that is NaN or infinite")
    return f"Step {step}: {' and '.join(facts)}."


def _loss_in(output: Any) -> torch.Tensor | None:
    """Return the loss in a model's output; None if it has no loss.

    It is the value `loss` of a mapping, the attribute `loss`, the first element of a tuple, or the
    output itself. Of the latter two only scalars are losses.
    """
    import torch

    loss = getattr(output, "loss", None)
    if hasattr(output, "get"):
        loss = output.get("loss")

    # Without a name, the loss is the first element, or the output itself.
    if loss is None:
        loss = output
        if isinstance(output, (tuple, list)) and output:
            loss = cast("Sequence[object]", output)[0]
        if not isinstance(loss, torch.Tensor) or loss.ndim != 0:
            return None
    if not isinstance(loss, torch.Tensor) or not loss.is_floating_point():
        return None
    return loss


def _running_statistics(model: nn.Module) -> list[torch.Tensor]:
    """Return the buffers that forward passes change."""
    buffers: list[torch.Tensor] = []
    for module in model.modules():
        if getattr(module, "track_running_stats", False):
            buffers.extend(module.buffers(recurse=False))
    return buffers


def _copy_values(sources: list[torch.Tensor], targets: list[torch.Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)
