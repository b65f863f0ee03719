"""Skip optimizer steps whose loss or gradients are NaN or infinite."""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, get_args

from ._signal_exchange import processes
from ._work import is_compiled
from .base import TrainerCallback
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    import torch
    from lightning.fabric.utilities.spike import SpikeDetection
    from torch import nn
    from torch.utils.hooks import RemovableHandle

logger = logging.getLogger(__name__)

Action = Literal["stop", "raise", "skip", "go_back"]
_NAMED = 5


class NaNGuardError(FloatingPointError):
    """Raised for NaN or infinite losses or gradients by `NaNGuardCallback(action="raise")`."""


class NaNGuardCallback(TrainerCallback):
    """No counterpart in transformers: leaves out an optimizer step whose loss or gradients are NaN
    or infinite.

    Checks the gradients as the optimizer would get them, summed over the micro-batches, and the
    losses that the model returned; all ranks decide the same. A skipped step counts in
    `global_step` and for the schedule, but weights, optimizer state and running statistics (those
    of batch norm) are unchanged, bit for bit. A warning names each one, with losses and parameters;
    clipping by norm has spread one NaN to all of them by then.

    Under fp16, infinite gradients adjust the loss scale, and the scaler skips such steps anyway:
    there only the losses count.

    This reads all gradients once, and synchronizes the device once a step. It has to be every step:
    one later, the weights are NaN.

    Args:
        action: "stop" ends the training normally, "raise" with an error, "skip" continues with the
            next step, "go_back" too, but with weights and optimizer of the newest checkpoint of
            this training, as if all steps since then had been skipped.
        patience: with both, steps in a row that may be skipped before the training ends; None for
            any number.
        spikes: `SpikeDetection` of `lightning.pytorch.callbacks`, of which the settings count:
            steps whose loss, the mean that the model returns over micro-batches and ranks, is a
            spike by them count as bad, too. No file is written; the window of losses is in
            checkpoints.

    Attributes:
        skipped: the skipped steps of this training, the one that ended it included.

    Raises:
        ValueError: `action` is unknown, `patience` is not positive, with `spikes` the model returns
            no loss, or with "go_back" no checkpoints are written.
    """

    def __init__(
        self,
        action: Action = "stop",
        patience: int | None = 10,
        spikes: SpikeDetection | None = None,
    ) -> None:
        if action not in get_args(Action):
            raise ValueError(
                f"action is {action!r}. It has to be one of "
                f"{', '.join(map(repr, get_args(Action)))}."
            )
        if patience is not None and patience < 1:
            raise ValueError(
                f"patience is {patience}, but counts steps: give 1 or more, or None for no limit."
            )
        self.action = action
        self.patience = patience
        self.spikes = spikes
        self.skipped: list[int] = []
        self._window: deque[float] = deque(
            maxlen=0 if spikes is None else spikes.running_mean.window
        )
        self._resumed = False
        self._in_a_row = 0
        self._losses: list[torch.Tensor] = []
        self._hook: RemovableHandle | None = None
        self._statistics: list[torch.Tensor] = []
        self._statistics_before: list[torch.Tensor] = []
        self._groups_before: list[dict[str, Any]] = []

    def on_train_begin(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Record the losses that the model returns from now on."""
        self._let_go()
        if self.action == "go_back":
            _require_checkpoints(args)
        self.skipped = []
        self._in_a_row = 0
        if not self._resumed:
            self._window.clear()
        self._resumed = False
        if model is None:
            return
        if not is_compiled(args, model):
            self._hook = model.register_forward_hook(self._note_loss)
        self._statistics = _running_statistics(model)
        self._statistics_before = [buffer.clone() for buffer in self._statistics]

    def on_step_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Copy the running statistics: the forward pass changes them before the loss is known."""
        self._losses = []
        _copy(self._statistics_before, self._statistics)

    def on_pre_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check losses and gradients, and drop the gradients if any is bad, so that the optimizer
        does nothing.

        Raises:
            NaNGuardError: with the action "raise".
        """
        model = kwargs.get("model")
        optimizer = kwargs.get("optimizer")
        parameters = _parameters(model, optimizer)
        has_loss_scaler = getattr(args, "fp16", False)
        losses = self._losses
        self._losses = []

        # All ranks decide by the same values.
        gradients = (
            []
            if has_loss_scaler
            else [weight.grad for weight in parameters if weight.grad is not None]
        )
        is_bad = _is_bad(losses, gradients)
        loss = 0.0 if self.spikes is None else _mean(losses)
        if processes() > 1:
            is_bad, loss = _over_ranks(is_bad, loss)
        if not is_bad and not self._is_spike(loss):
            self._in_a_row = 0
            return

        # Without gradients the optimizer does nothing. A loss scaler skips the step itself where it
        # sees bad ones.
        names = _names_of_bad(model, parameters)
        text = _description(state.global_step + 1, losses, names)
        if not is_bad:
            text += (
                " That is a spike: the usual loss is "
                f"{sum(self._window) / max(len(self._window), 1):.4g}."
            )
        if not (has_loss_scaler and names):
            for weight in parameters:
                weight.grad = None
        _copy(self._statistics, self._statistics_before)
        self._groups_before = [dict(group) for group in getattr(optimizer, "param_groups", ())]
        self._answer(text, state, control)

    def on_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Undo what an optimizer counted although it had no gradients."""
        if not self._groups_before:
            return
        for group, before in zip(
            kwargs["optimizer"].param_groups, self._groups_before, strict=True
        ):
            group.update(before)
        self._groups_before = []

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Remove the forward hook."""
        self._let_go()

    def state_dict(self) -> dict[str, Any]:
        """Return the losses in the window of `spikes`; nothing without it."""
        return {"usual": list(self._window)} if self._window else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take them from a checkpoint."""
        self._window.extend(state_dict["usual"])
        self._resumed = True

    def _is_spike(self, loss: float) -> bool:
        """Return whether a loss is a spike by the settings of `spikes`; otherwise it joins the
        window.
        """
        if self.spikes is None:
            return False
        is_spike = len(self._window) >= self.spikes.warmup and _is_above(
            self._window, loss, self.spikes
        )
        if not is_spike:
            self._window.append(loss)
        return is_spike

    def _answer(self, text: str, state: TrainerState, control: TrainerControl) -> None:
        self.skipped.append(state.global_step + 1)
        self._in_a_row += 1
        if self.action == "raise":
            self._let_go()
            raise NaNGuardError(f"{text} The weights are those before this step.")

        continues = self.action != "stop"
        if continues and self._in_a_row == self.patience:
            continues = False
            text += (
                f" That is {self._in_a_row} in a row, as many as patience={self.patience} allows."
            )
        if continues:
            text += " The step is left out."
            if self.action == "go_back":
                control.should_go_back = True
        else:
            text += " Training stops, with the weights before this step."
            control.should_training_stop = True
        if state.is_world_process_zero:
            logger.warning("%s", text)

    def _note_loss(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Record the loss, as a forward hook; it stays on the device."""
        loss = _loss_of(output) if module.training else None
        if loss is not None:
            self._losses.append(loss.detach())

    def _let_go(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = None
        self._losses = []
        self._statistics = []
        self._statistics_before = []


def _require_checkpoints(args: Any) -> None:
    """Refuse to go back where no checkpoint has the optimizer."""
    if not hasattr(args, "save_only_model"):
        raise ValueError(
            "action='go_back' reads checkpoints of the Trainer, which a LightningBridge does not "
            "write. Take action='skip' or 'stop', or train with lightrainer.Trainer."
        )
    if args.save_only_model or args.save_strategy == "no":
        raise ValueError(
            "action='go_back' needs checkpoints of the Trainer with the optimizer, but "
            "save_strategy is 'no' or save_only_model=True. Set save_strategy='steps' and "
            "save_only_model=False, or take action='skip'."
        )


def _is_above(window: deque[float], loss: float, settings: SpikeDetection) -> bool:
    """Return whether a loss is a spike, as Lightning's `SpikeDetection` decides it.

    Args:
        window: the last losses that were no spikes.
        loss: the new one.
        settings: which direction is better, and what may lie between the loss and the mean of the
            window.
    """
    if settings.finite_only and not math.isfinite(loss):
        return True
    change = loss - (window[-1] if window else 0.0)
    if change == 0 or (change < 0) == (settings.mode == "min"):
        return False
    mean = sum(window) / len(window) if window else math.nan
    distance = abs(loss - mean)
    is_above_atol = settings.atol is None or distance >= abs(settings.atol)
    is_above_rtol = settings.rtol is None or distance >= abs(settings.rtol * mean)
    return is_above_atol and is_above_rtol


def _is_bad(losses: list[torch.Tensor], gradients: list[torch.Tensor]) -> bool:
    """Return whether a loss or gradient of this rank is NaN or infinite; synchronizes the device
    once.
    """
    import torch

    parts = [_values(gradient) for gradient in gradients]
    largest = torch.nn.utils.get_total_norm(
        [part for part in parts if part.numel()], norm_type=float("inf")
    )
    bad = ~largest.isfinite()
    for loss in losses:
        bad = bad | ~loss.isfinite().all().to(bad.device)
    return bool(bad.item())


def _mean(losses: list[torch.Tensor]) -> float:
    """Return the mean of the losses of the micro-batches."""
    import torch

    if not losses:
        raise ValueError(
            "NaNGuardCallback(spikes=...) reads the loss that the model returns, and found none."
        )
    return torch.stack([loss.float().mean() for loss in losses]).mean().item()


def _over_ranks(is_bad: bool, loss: float) -> tuple[bool, float]:
    """Return whether a step is bad on any rank, and the mean loss of the ranks, the same on all
    of them.
    """
    import torch.distributed as dist

    ranks: list[tuple[bool, float]] = [(is_bad, loss)] * processes()
    dist.all_gather_object(ranks, (is_bad, loss))
    return any(bad for bad, _ in ranks), sum(loss for _, loss in ranks) / len(ranks)


def _values(tensor: Any) -> torch.Tensor:
    """Return this rank's numbers of a tensor, which may be sparse or sharded."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.coalesce().values() if local.is_sparse else local


def _parameters(model: Any, optimizer: Any) -> list[torch.nn.Parameter]:
    """Return the parameters of the optimizer, or else of the model."""
    groups = getattr(optimizer, "param_groups", None)
    if groups is not None:
        return [parameter for group in groups for parameter in group["params"]]
    return [] if model is None else list(model.parameters())


def _names_of_bad(model: Any, parameters: list[torch.nn.Parameter]) -> list[str]:
    """Return the names of the parameters whose gradients are bad on this rank."""
    names = {} if model is None else {id(weight): name for name, weight in model.named_parameters()}
    bad = []
    for index, weight in enumerate(parameters):
        if weight.grad is not None and not _values(weight.grad).isfinite().all():
            bad.append(names.get(id(weight), f"parameter {index} of the optimizer"))
    return bad


def _description(step: int, losses: list[torch.Tensor], names: list[str]) -> str:
    """Describe the losses and the bad gradients of a step on this rank."""
    facts = []
    if losses:
        facts.append(
            f"the loss is {', '.join(f'{loss.float().mean().item():.4g}' for loss in losses)}"
        )
    if names:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        facts.append(f"gradients are NaN or infinite in {', '.join(names[:_NAMED])}{more}")
    return (
        f"Step {step}: "
        f"{' and '.join(facts) or 'another process has a loss that is NaN or infinite'}."
    )


def _loss_of(output: Any) -> torch.Tensor | None:
    """Return the loss in a model's output: in a mapping, an attribute, the first of a tuple, or
    the output itself.
    """
    import torch

    found = output.get("loss") if hasattr(output, "get") else getattr(output, "loss", None)
    if found is None:
        found = output[0] if isinstance(output, (tuple, list)) and output else output
        found = found if isinstance(found, torch.Tensor) and found.ndim == 0 else None
    return found if isinstance(found, torch.Tensor) and found.is_floating_point() else None


def _running_statistics(model: nn.Module) -> list[torch.Tensor]:
    """Return the buffers that forward passes change."""
    buffers = []
    for module in model.modules():
        if getattr(module, "track_running_stats", False):
            buffers.extend(module.buffers(recurse=False))
    return buffers


def _copy(to: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    for target, value in zip(to, values, strict=True):
        target.copy_(value)
