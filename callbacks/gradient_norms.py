"""Log the gradient norm of each layer."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._log_values import add_to_logs, is_training_log
from .base import TrainerCallback
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from torch import nn

    from .arguments import CallbackArguments

_LAYER = re.compile(r"^(.*?\.?\d+)(?:\.|$)")


class GradientNormCallback(TrainerCallback):
    """No counterpart in transformers, which logs one norm: adds `grad_norm/<layer>` to the logs,
    for each layer.

    It is the 2-norm of the layer's gradients in the step that is logged, before they are clipped,
    so the squares of all layers add up to the square of `grad_norm` in the same log. Norms are
    computed on the device, in steps that `logging_steps` will log (in every step where another
    setting decides), and fetched when the log is written.

    Args:
        layer_of: the name of a parameter -> the name of its layer, or `None` to leave the parameter
            out. By default the name up to its first number, as `transformer.h.0`, or else the
            module's.
    """

    adds_to_logs = True

    def __init__(self, layer_of: Callable[[str], str | None] | None = None) -> None:
        self.layer_of = layer_of or layer_name
        self._norms: Any = None
        self._layers: list[str] = []
        self._step = -1

    def on_train_begin(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Forget the norms of an earlier training."""
        self._norms = None

    def on_pre_optimizer_step(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Compute the norm of each gradient, if this step is going to be logged."""
        if model is None or not _may_be_logged(args, state, control):
            return
        import torch

        named = [(self.layer_of(name), weight.grad) for name, weight in model.named_parameters()]
        found = [(layer, grad) for layer, grad in named if layer is not None and grad is not None]
        self._layers = [layer for layer, _ in found]
        self._norms = [
            torch.linalg.vector_norm(
                _dense(grad), dtype=torch.promote_types(grad.dtype, torch.float32)
            )
            for _, grad in found
        ]
        self._step = state.global_step + 1

    def on_log(
        self,
        args: CallbackArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: object,
    ) -> None:
        """Add the norms of the layers."""
        if is_training_log(logs) and self._norms and self._step == state.global_step:
            undone = _clipped_by(logs.get("grad_norm"), getattr(args, "max_grad_norm", 0))
            squares: dict[str, float] = {}
            for layer, norm in zip(self._layers, _fetched(self._norms), strict=True):
                squares[layer] = squares.get(layer, 0.0) + norm * norm
            norms = {
                f"grad_norm/{layer}": math.sqrt(square) * undone
                for layer, square in squares.items()
            }
            add_to_logs(logs, state, norms)
        self._norms = None


def layer_name(parameter: str) -> str:
    """Return the layer of a parameter: its name up to the first number, or else its module's name.

    `transformer.h.0.attn.weight` belongs to `transformer.h.0`, `lm_head.weight` to `lm_head`.
    """
    numbered = _LAYER.match(parameter)
    return numbered.group(1) if numbered else parameter.rpartition(".")[0] or parameter


def _may_be_logged(args: CallbackArguments, state: TrainerState, control: TrainerControl) -> bool:
    """Return whether a log may be due after the coming step; only logs by interval are known in
    advance.
    """
    strategy = getattr(args, "logging_strategy", None)
    step = state.global_step + 1
    every = state.logging_steps
    if control.should_log or strategy != "steps":
        return control.should_log or strategy != "no"
    return (step == 1 and bool(getattr(args, "logging_first_step", False))) or (
        every > 0 and step % every == 0
    )


def _dense(gradient: Any) -> Any:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _fetched(norms: list[Any]) -> list[float]:
    """Fetch all norms with one synchronization; norms of sharded gradients are gathered first."""
    import torch

    whole = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
    return torch.stack([norm.to(whole[0].device) for norm in whole]).tolist()


def _clipped_by(norm: float | None, limit: float | None) -> float:
    """Return the factor by which `torch.nn.utils.clip_grad_norm_` has divided the gradients."""
    if norm is None or not limit or limit <= 0:
        return 1.0
    return max((norm + 1e-6) / limit, 1.0)
