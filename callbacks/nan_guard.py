"""Skip optimizer steps whose loss or gradients are NaN or infinite."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, get_args

from ._signal_exchange import processes
from ._work import is_compiled
from .base import TrainerCallback
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    import torch
    from lightning.fabric.utilities.spike import SpikeDetection

logger = logging.getLogger(__name__)

Action = Literal["stop", "raise", "skip", "go_back"]
_NAMED = 5


class NaNGuardError(FloatingPointError):
    """Raised for NaN or infinite losses or gradients by `NaNGuardCallback(action="raise")`."""


class NaNGuardCallback(TrainerCallback):
    """No counterpart in transformers: leaves out an optimizer step whose loss or gradients are NaN or infinite.

    Checks the gradients as the optimizer would get them, summed over the micro-batches, and the losses that the model
    returned; all ranks decide the same. A skipped step counts in `global_step` and for the schedule, but weights,
    optimizer state and running statistics (those of batch norm) are unchanged, bit for bit. A warning names each one,
    with losses and parameters; clipping by norm has spread one NaN to all of them by then.

    Under fp16, infinite gradients adjust the loss scale, and the scaler skips such steps anyway: there only the losses
    count.

    This reads all gradients once, and synchronizes the device once a step. It has to be every step: one later, the
    weights are NaN.

    Args:
        action: "stop" ends the training normally, "raise" with an error, "skip" continues with the next step,
            "go_back" too, but with weights and optimizer of the newest checkpoint of this training, as if all steps
            since then had been skipped.
        patience: with both, steps in a row that may be skipped before the training ends; None for any number.
        spikes: `SpikeDetection` of `lightning.pytorch.callbacks`: steps whose loss, the mean that the model returns
            over micro-batches and ranks, it takes for a spike count as bad, too. It is asked before the step and writes
            no file; its window is in checkpoints.

    Attributes:
        skipped: the skipped steps of this training, the one that ended it included.

    Raises:
        ValueError: there is no such action, the patience is no positive number, with `spikes` there is no loss, or with
            "go_back" no checkpoints are written.
    """

    def __init__(
        self, action: Action = "stop", patience: int | None = 10, spikes: SpikeDetection | None = None
    ) -> None:
        if action not in get_args(Action):
            raise ValueError(f"action is {action!r}. It has to be one of {', '.join(map(repr, get_args(Action)))}.")
        if patience is not None and patience < 1:
            raise ValueError(f"patience is {patience}, but counts steps: give 1 or more, or None for no limit.")
        self.action = action
        self.patience = patience
        self.spikes = spikes
        self.skipped: list[int] = []
        self._usual: deque[float] = deque(maxlen=spikes.running_mean.window if spikes is not None else 0)
        self._begun = self._resumed = False
        self._in_a_row = 0
        self._losses: list[torch.Tensor] = []
        self._hook: Any = None
        self._statistics: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        self._groups: list[dict[str, Any]] | None = None

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        """Record the losses that the model returns from now on."""
        self._let_go()
        self.skipped, self._in_a_row = [], 0
        self._begun, self._resumed, resumed = False, False, self._resumed
        if not resumed:
            self._usual.clear()
        if self.action == "go_back" and not hasattr(args, "save_only_model"):
            raise ValueError(
                "action='go_back' reads checkpoints of the Trainer, which a LightningBridge does not write. Take "
                "action='skip' or 'stop', or train with lightrainer.Trainer."
            )
        if self.action == "go_back" and (args.save_only_model or args.save_strategy == "no"):
            raise ValueError(
                "action='go_back' needs checkpoints of the Trainer with the optimizer, but save_strategy is 'no' or "
                "save_only_model=True. Set save_strategy='steps' and save_only_model=False, or take action='skip'."
            )
        if model is None:
            return
        if not is_compiled(args, model):
            self._hook = model.register_forward_hook(self._note_loss)
        found = list(_running_statistics(model))
        self._statistics = (found, [buffer.clone() for buffer in found])

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Copy the running statistics: the forward pass changes them before the loss is known."""
        self._losses = []
        present, kept = self._statistics
        _copy(kept, present)

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Check losses and gradients, and drop the gradients if any is bad, so that the optimizer does nothing.

        Raises:
            NaNGuardError: with the action "raise".
        """
        model, optimizer = kwargs.get("model"), kwargs.get("optimizer")
        losses, self._losses = self._losses, []
        parameters, scaled = _parameters(model, optimizer), getattr(args, "fp16", False)
        gradients = [] if scaled else [one.grad for one in parameters if one.grad is not None]
        bad_values = _any_process_has_bad(losses, gradients)
        if not (self.spikes is not None and self._is_spike(losses)) and not bad_values:
            self._in_a_row = 0
            return
        bad = _named(model, parameters)
        said = _said(state.global_step + 1, losses, bad)
        if not (scaled and bad):  # then the loss scaler leaves the step out, and is to see why
            for parameter in parameters:
                parameter.grad = None
        present, kept = self._statistics
        _copy(present, kept)
        self._groups = [{**group} for group in getattr(optimizer, "param_groups", ())]
        if not bad_values:
            said += f" That is a spike: the usual loss is {sum(self._usual) / max(len(self._usual), 1):.4g}."
        self._answer(said, state, control)

    def on_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Undo what an optimizer counted although it had no gradients."""
        groups, self._groups = self._groups, None
        for group, before in zip(getattr(kwargs.get("optimizer"), "param_groups", ()), groups or (), strict=False):
            group.update(before)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Remove the forward hook."""
        self._let_go()

    def state_dict(self) -> dict[str, Any]:
        """Return the losses in the window of `spikes`; nothing without it."""
        return {"usual": list(self._usual)} if self._usual else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take them from a checkpoint."""
        self._usual.extend(state_dict["usual"])
        self._resumed = True

    def _is_spike(self, losses: list[torch.Tensor]) -> bool:
        """Return whether `spikes` takes the mean loss of all ranks for one; otherwise it joins the window."""
        import torch
        from lightning.fabric.utilities.spike import SpikeDetection, TrainingSpikeException

        if not losses:
            raise ValueError("NaNGuardCallback(spikes=...) reads the loss that the model returns, and found none.")
        mean = torch.stack([loss.float().mean() for loss in losses]).mean()
        if processes() > 1:
            mean = mean.to(_transport(mean.device))
            torch.distributed.all_reduce(mean)
            mean /= processes()
        strategy = SimpleNamespace(root_device=mean.device, barrier=lambda: None, reduce_boolean_decision=_as_it_is)
        fabric: Any = SimpleNamespace(strategy=strategy, global_rank=1)  # which writes no file
        detector: Any = self.spikes
        if not self._begun:
            self._begun = True
            detector.running_mean.reset()
            for usual in self._usual:
                SpikeDetection.on_train_batch_end(detector, fabric, mean.new_tensor(usual), None, 0)
        try:
            SpikeDetection.on_train_batch_end(detector, fabric, mean, None, len(self._usual))
        except TrainingSpikeException:
            return True
        self._usual.append(mean.item())
        return False

    def _answer(self, said: str, state: TrainerState, control: TrainerControl) -> None:
        self.skipped.append(state.global_step + 1)
        self._in_a_row += 1
        if self.action == "raise":
            self._let_go()
            raise NaNGuardError(f"{said} The weights are those before this step.")
        goes_on = self.action in ("skip", "go_back")
        at_its_end = goes_on and self.patience is not None and self._in_a_row >= self.patience
        if at_its_end:
            said += f" That is {self._in_a_row} in a row, as many as patience={self.patience} allows."
        if self.action == "stop" or at_its_end:
            control.should_training_stop = True
            said += " Training stops, with the weights before this step."
        else:
            control.should_go_back |= self.action == "go_back"
            said += " The step is left out."
        if state.is_world_process_zero:
            logger.warning("%s", said)

    def _note_loss(self, module: Any, inputs: Any, output: Any) -> None:
        """Record the loss, as a forward hook; it stays on the device."""
        loss = _loss_of(output) if module.training else None
        if loss is not None:
            self._losses.append(loss.detach())

    def _let_go(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook, self._losses, self._statistics = None, [], ([], [])


def _as_it_is(decision: bool, all: bool = True) -> bool:
    return decision


def _any_process_has_bad(losses: list[torch.Tensor], gradients: list[torch.Tensor]) -> bool:
    """Return whether a loss or gradient on any rank is NaN or infinite; synchronizes the device once."""
    import torch

    parts = [_values(one) for one in gradients]
    largest = torch.nn.utils.get_total_norm([one for one in parts if one.numel()], norm_type=float("inf"))
    bad = ~largest.isfinite()
    for loss in losses:
        bad = bad | ~loss.isfinite().all().to(bad.device)
    if processes() > 1:
        shared = bad.to(_transport(bad.device), torch.int32).reshape(1)
        torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX)
        return bool(shared.item())
    return bool(bad.item())


def _transport(device: torch.device) -> torch.device:
    """Return the device on which the backend of the process group takes tensors."""
    import torch

    if str(torch.distributed.get_backend()) == "nccl":
        return device if device.type == "cuda" else torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu") if str(torch.distributed.get_backend()) == "gloo" else device


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


def _named(model: Any, parameters: list[torch.nn.Parameter]) -> list[str]:
    """Return the names of the parameters whose gradients are bad here."""
    names = {} if model is None else {id(parameter): name for name, parameter in model.named_parameters()}
    return [
        names.get(id(parameter), f"parameter {index} of the optimizer")
        for index, parameter in enumerate(parameters)
        if parameter.grad is not None and not bool(_values(parameter.grad).isfinite().all())
    ]


def _said(step: int, losses: list[torch.Tensor], bad: list[str]) -> str:
    """Describe the bad losses and gradients of a step on this rank."""
    of_model = f"the loss is {', '.join(f'{loss.float().mean().item():.4g}' for loss in losses)}" if losses else ""
    more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
    of_gradients = f"gradients are NaN or infinite in {', '.join(bad[:_NAMED])}{more}" if bad else ""
    facts = " and ".join(fact for fact in (of_model, of_gradients) if fact)
    return f"Step {step}: {facts or 'another process has a loss that is NaN or infinite'}."


def _loss_of(output: Any) -> torch.Tensor | None:
    """Return the loss in a model's output: in a mapping, an attribute, the first of a tuple, or the output itself."""
    import torch

    found = output.get("loss") if hasattr(output, "get") else getattr(output, "loss", None)
    if found is None:
        found = output[0] if isinstance(output, (tuple, list)) and output else output
        found = found if isinstance(found, torch.Tensor) and found.ndim == 0 else None
    return found if isinstance(found, torch.Tensor) and found.is_floating_point() else None


def _running_statistics(model: Any) -> Iterator[torch.Tensor]:
    """Yield the buffers that forward passes change."""
    for module in model.modules():
        if getattr(module, "track_running_stats", False):
            yield from module.buffers(recurse=False)


def _copy(to: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    for target, value in zip(to, values, strict=True):
        target.copy_(value)
