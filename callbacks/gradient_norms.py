"""Log the gradient norm of each layer."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from ._gradients import dense_values, gather_full_tensor, ids_of_weights, is_sharded_by_fsdp1
from ._log_values import add_to_logs, is_training_log
from .base import TrainerCallback
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from ..facade import TrainingArguments


_LAYER = re.compile(r"^(.*?\.?\d+)(?:\.|$)")
"""The name of a parameter up to its first number."""


class GradientNormCallback(TrainerCallback):
    """Adds `grad_norm/<layer>` to the logs, for each layer. Not in transformers.

    It is the 2-norm of the layer's gradients in the logged step, before they are clipped, so the
    squares of all layers add up to the square of `grad_norm` in the same log. Norms are computed on
    the device, in the steps that `logging_steps` will log (in every step if another setting
    decides), and fetched when the log is written.

    Args:
        layer_of: maps the name of a parameter to the name of its layer; None leaves the parameter
            out. By default the name up to its first number, as `transformer.h.0`, or the name of
            the module if it has no number.

    Raises:
        ValueError: when training begins: version 1 of FSDP shards the model.
    """

    adds_to_logs = True

    def __init__(self, layer_of: Callable[[str], str | None] | None = None) -> None:
        self.layer_of = layer_of or layer_name

        # The layer and the norm of each gradient, by the `id` of the optimizer, and the value of
        # `global_step` before the step in which they were computed.
        self._norms: dict[int, list[tuple[str, torch.Tensor]]] = {}
        self._step_before = -1
        # Whether norms are computed after clipping.
        self._are_clipped = True

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Drop the norms of an earlier training."""
        self._norms = {}
        self._are_clipped = True
        if model is not None and is_sharded_by_fsdp1(model):
            raise ValueError(
                "GradientNormCallback cannot measure gradients that version 1 of FSDP shards, as "
                "each process has parts of them. Set fsdp_config={'version': 2}, or remove the "
                "callback."
            )

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        optimizer: Optimizer | None = None,
        **kwargs: object,
    ) -> None:
        """Compute the norm of each gradient, if this step may be logged."""
        if self._are_clipped:
            self._measure(args, state, control, model, optimizer)

    def before_clipping(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None,
        optimizer: Optimizer,
    ) -> None:
        """Compute the norms; a `LightningBridge` calls this before the module clips."""
        self._are_clipped = False
        self._measure(args, state, control, model, optimizer)

    def _measure(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None,
        optimizer: Optimizer | None,
    ) -> None:
        if state.global_step != self._step_before:
            self._norms = {}
            self._step_before = state.global_step
        optimizers = _optimizers_of_lightning(args)
        if model is None or not _may_be_logged(args, state, control, len(optimizers) or 1):
            return

        owned = None
        if optimizer is not None and optimizers:
            owned = ids_of_weights(optimizer)

        # Norms are kept per parameter. `on_log` fetches all of them at once and sums the squares of
        # each layer on the CPU.
        norms: list[tuple[str, torch.Tensor]] = []
        for name, weight in model.named_parameters():
            if weight.grad is None:
                continue

            # In plain Lightning, each optimizer clears only its own gradients.
            if owned is not None and id(weight) not in owned:
                continue
            layer = self.layer_of(name)
            if layer is not None:
                norm = _norm(weight.grad)
                norms.append((layer, norm))
        self._norms[id(optimizer)] = norms

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: object,
    ) -> None:
        """Add the norms of the layers."""
        norms: list[tuple[str, torch.Tensor]] = []
        for norms_of_optimizer in self._norms.values():
            norms.extend(norms_of_optimizer)
        self._norms = {}
        if not is_training_log(logs) or not norms:
            return
        if self._step_before >= state.global_step:
            return

        squares: dict[str, float] = {}
        fetched = _fetched([norm for _, norm in norms])
        for (layer, _), norm in zip(norms, fetched, strict=True):
            squares[layer] = squares.get(layer, 0.0) + norm * norm

        # `on_pre_optimizer_step` comes after clipping, so the factor of clipping is undone.
        clip_factor = 1.0
        if self._are_clipped:
            clip_factor = _clip_factor(logs.get("grad_norm"), getattr(args, "max_grad_norm", 0))
        layer_norms: dict[str, float] = {}
        for layer, square in squares.items():
            layer_norms[f"grad_norm/{layer}"] = math.sqrt(square) * clip_factor
        add_to_logs(logs, state, layer_norms)


def layer_name(parameter_name: str) -> str:
    """Return the layer of a parameter: its name up to the first number, or its module's name.

    `transformer.h.0.attn.weight` belongs to `transformer.h.0`, `lm_head.weight` to `lm_head`.
    """
    match = _LAYER.match(parameter_name)
    if match is not None:
        return match.group(1)
    module_name = parameter_name.rpartition(".")[0]
    return module_name or parameter_name


def _optimizers_of_lightning(args: TrainingArguments) -> list[Optimizer]:
    """Return the optimizers of a plain Lightning Trainer, which may have several."""
    trainer = getattr(args, "trainer", None)
    return list(getattr(trainer, "optimizers", ()))


def _may_be_logged(
    args: TrainingArguments, state: TrainerState, control: TrainerControl, steps: int
) -> bool:
    """Return whether a log may be due after the coming steps.

    Only logs by interval are known in advance.
    """
    if control.should_log:
        return True
    strategy = getattr(args, "logging_strategy", None)
    if strategy != "steps":
        return strategy != "no"
    done = state.global_step
    if done == 0 and getattr(args, "logging_first_step", False):
        return True

    # A multiple of the interval is among the coming steps.
    interval = state.logging_steps
    if interval <= 0:
        return False
    next_log = (done // interval + 1) * interval
    return next_log <= done + steps


def _norm(gradient: torch.Tensor) -> torch.Tensor:
    """Return the 2-norm of a gradient, computed at least in float32."""
    import torch

    dtype = torch.promote_types(gradient.dtype, torch.float32)
    norm = torch.linalg.vector_norm(dense_values(gradient), dtype=dtype)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - untyped in torch
    return cast("torch.Tensor", norm)


def _fetched(norms: list[torch.Tensor]) -> list[float]:
    """Fetch all norms with one synchronization; norms of sharded gradients are gathered first."""
    import torch

    full_norms = [gather_full_tensor(norm) for norm in norms]
    device = full_norms[0].device
    stacked = torch.stack([norm.to(device) for norm in full_norms])
    return cast("list[float]", stacked.tolist())  # pyright: ignore[reportUnknownMemberType] - untyped in torch


def _clip_factor(norm: float | None, max_norm: float | None) -> float:
    """Return the factor by which `torch.nn.utils.clip_grad_norm_` has divided the gradients.

    Args:
        norm: the norm of all gradients, before clipping.
        max_norm: the limit; 0 or None for no clipping.
    """
    if norm is None or not max_norm or max_norm <= 0:
        return 1.0
    return max((norm + 1e-6) / max_norm, 1.0)
