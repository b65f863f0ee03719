"""Mixed precision of a model's forward passes, and loss scaling for float16."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..common.dtensor import local_shard
from ..common.nested import map_nested

HALF = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}
"""Dtypes of Lightning's mixed precisions."""

_BEFORE = "_forward_before_cast"


class LossScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler` that unscales gradients only once per step, and records skipped steps.

    Its state has the same format.

    Attributes:
        gradients_are_sharded: whether ranks have shards of the gradients. Then infinite values on
            one rank count on all.
        extra_parameters: parameters without an optimizer. Their gradients are unscaled with those
            of the first optimizer, because they are part of the model's gradient norm.
    """

    gradients_are_sharded = False
    extra_parameters: Sequence[torch.Tensor] = ()

    def __init__(self, device: str, **options: Any) -> None:
        super().__init__(device, **options)
        self.step_was_skipped = False
        """Whether the last optimizer step was skipped because gradients were infinite or NaN.

        For optimizers that check gradients themselves (torch's fused ones), it is always False.
        """
        self._unscaled: set[int] = set()

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale, unless that has been done since the last step."""
        if id(optimizer) in self._unscaled:
            return
        super().unscale_(optimizer)

        # Do this once, with the first optimizer.
        if not self._unscaled:
            scale: Any = self._scale
            for parameter in self.extra_parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(scale.to(parameter.grad.device))
        self._unscaled.add(id(optimizer))

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        if not self.gradients_are_sharded:
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        gradients: list[torch.Tensor] = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradients.append(parameter.grad)

        # The flag is 1 if any gradient on any rank is infinite or NaN.
        is_infinite = found_inf.clone()
        with torch.no_grad():
            for gradient in gradients:
                part: torch.Tensor = local_shard(gradient)
                is_part_infinite = part.isfinite().all().logical_not()
                is_infinite = is_infinite.maximum(is_part_infinite.to(is_infinite))
                part.mul_(inv_scale.to(part.device))
        dist.all_reduce(is_infinite, op=dist.ReduceOp.MAX)

        # torch expects the flag on each device.
        devices = {found_inf.device}
        devices.update(gradient.device for gradient in gradients)
        return {device: is_infinite.to(device) for device in devices}

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Unscale the gradients if needed, and take a step if all are finite."""
        stepped: list[bool] = []
        handle = optimizer.register_step_pre_hook(lambda *_: stepped.append(True))
        try:
            return super().step(optimizer, *args, **kwargs)
        finally:
            handle.remove()
            self.step_was_skipped = not stepped

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Lower the scale after a skipped step, and raise it after many successful ones."""
        self._unscaled.clear()
        super().update(new_scale)


class ForwardCasting:
    """Mixin for Lightning precision plugins that cast forward passes instead of whole steps.

    See `casting`. The model and its inputs keep their dtype.
    """

    precision: Any
    device: str

    def autocast_context_manager(self) -> Any:
        """Return the context of forward passes of the model."""
        dtype = HALF.get(self.precision)
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=dtype)

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Return the module unchanged."""
        return module

    def train_step_context(self) -> Any:
        """Return a null context, because the forward passes within the step are cast."""
        return contextlib.nullcontext()

    val_step_context = test_step_context = train_step_context


@contextlib.contextmanager
def casting(
    model: nn.Module, context: Callable[[], contextlib.AbstractContextManager[object]]
) -> Iterator[None]:
    """Run the forward passes of a model in `context`, and convert their outputs to float32.

    The model can be copied and pickled within the `with` block, because `forward` is a bound
    method.

    Args:
        model: the model. Its hooks see the same inputs and outputs as the caller.
        context: creates the context manager, such as `torch.autocast("cpu", torch.bfloat16)`.
    """
    before = vars(model).get("forward")
    model.forward = MethodType(_cast(model, context), model)
    try:
        yield
    finally:
        _restore(model, before)


def start_casting(
    model: nn.Module, context: Callable[[], contextlib.AbstractContextManager[object]]
) -> None:
    """Cast the forward passes of a model until `stop_casting`, unless they are cast already.

    Unlike with `casting`, the cast outlasts the call, as `accelerator.prepare` needs it.
    """
    if _BEFORE not in vars(model):
        vars(model)[_BEFORE] = vars(model).get("forward")
        model.forward = MethodType(_cast(model, context), model)


def stop_casting(model: nn.Module) -> None:
    """Undo `start_casting`. Other models are not changed."""
    if _BEFORE in vars(model):
        _restore(model, vars(model).pop(_BEFORE))


def _restore(model: nn.Module, forward: Callable[..., object] | None) -> None:
    """Restore the `forward` attribute of a model; None removes it."""
    if forward is None:
        del model.forward
    else:
        model.forward = forward


def _cast(
    model: nn.Module, context: Callable[[], contextlib.AbstractContextManager[object]]
) -> Callable[..., object]:
    """Return a `forward` that runs the original one in a context, and returns float32 outputs."""
    present: Any = model.forward
    if getattr(present, "__self__", None) is model:
        forward = present.__func__
    else:
        forward = _as_method(present)

    @functools.wraps(forward)
    def cast(self: nn.Module, *args: object, **kwargs: object) -> Any:
        with context():
            output = forward(self, *args, **kwargs)
        return map_nested(to_float32, output)

    # Pickle looks the method up by this name.
    cast.__name__ = "forward"
    return cast


def _as_method(function: Callable[..., object]) -> Callable[..., object]:
    """Convert a function that was assigned to `forward` to a method."""

    def method(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return method


def to_float32(leaf: object) -> object:
    """Convert a half-precision tensor to float32. Other values are returned unchanged."""
    if isinstance(leaf, torch.Tensor) and leaf.dtype in HALF.values():
        return leaf.float()
    return leaf
