"""Log throughput and model FLOPs utilization."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ._compilation import is_compiled
from ._log_values import add_to_logs, is_training_log
from ._speed_meter import SpeedMeter
from .base import TrainerCallback
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode
    from torch.utils.hooks import RemovableHandle

    from ..facade import TrainingArguments


logger = logging.getLogger(__name__)


class ThroughputCallback(TrainerCallback):
    """Logs the speed of the last steps, and the share of the device's peak. Not in transformers.

    Added to each log of the training, over all processes:

    - `samples_per_second`, `steps_per_second`
    - `tokens_per_second`: if the model's main input is tokens, that is, integers in two dimensions.
      With `include_num_input_tokens_seen` the tokens that it counts.
    - `flops_per_second`: floating point operations, forward and backward.
    - `mfu`: the same as a fraction of the devices' peak, 0 to 1 (model FLOPs utilization: Chowdhery
      et al. 2022, PaLM, appendix B). Only if the peak is known.

    Time and steps count from the latest log, evaluation or checkpoint, so the time of evaluations
    and saves is excluded. The device is not synchronized: a log has just fetched the loss anyway.

    Args:
        flops: the source of the number of operations. "count" measures the first step of a training
            operation by operation (a few times slower; it is excluded from all speeds), and scales
            that by the size of the inputs. Operations that activation checkpointing repeats count
            twice. "model" uses the estimate of the model (`floating_point_ops`, in
            `state.total_flos`), as does "count" for a compiled model, whose operations cannot be
            counted. A number is the operations of one sample; `None` disables both values.
        peak_flops: the peak FLOP/s of one device with the dtype in use. `None` takes it from the
            data sheets of NVIDIA and AMD, for the devices listed in `_flops.py`.

    Raises:
        ValueError: `flops` or `peak_flops` has another value.
    """

    adds_to_logs = True
    reads_checkpoints = False

    def __init__(
        self, flops: str | float | None = "count", peak_flops: float | None = None
    ) -> None:
        is_source = flops is None or flops in ("count", "model")
        if not is_source and not _is_positive_number(flops):
            raise ValueError(
                f"flops is {flops!r}, but it must be 'count', 'model', None, or the number of "
                "operations per sample."
            )
        if peak_flops is not None and not _is_positive_number(peak_flops):
            raise ValueError(
                f"peak_flops is {peak_flops!r}, but it must be a number of FLOP/s, such as 312e12, "
                "or None."
            )
        self.flops = flops
        self.peak_flops = peak_flops
        self._speed_meter = SpeedMeter()
        self._inputs = _InputMeter()

        # The count of a step: its operations, and the size of its inputs.
        self._counter: FlopCounterMode | None = None
        self._counted_flops = 0
        self._counted_size = 0
        self._has_counted = False

        # The step and the `total_flos` of the last estimate of the model.
        self._last_estimate = (0, 0.0)
        self._has_warned_of_peak = False

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Start to measure the inputs of the model."""
        self._stop_counting()

        # The hooks of a compiled model would be compiled too.
        has_hooks = not is_compiled(args, model) and not hasattr(model, "_orig_mod")
        if has_hooks:
            self._inputs.attach(model)
        else:
            self._inputs.attach(None)
        self._counted_flops = 0
        self._has_counted = self.flops != "count" or model is None or not has_hooks
        self._last_estimate = (state.global_step, state.total_flos)
        self._speed_meter.start(state)

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Count the operations of the first step."""
        self._stop_counting()
        if self._has_counted:
            return
        from ._flops import flop_counter

        self._inputs.take()
        self._counter = flop_counter()
        self._counter.__enter__()
        # A forward pass that fails, for lack of memory for example, is repeated without counting.
        self._inputs.on_failure = self._stop_counting

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Store the operations of the forward and the backward pass."""
        if self._counter is None:
            return
        self._counted_flops = self._counter.get_total_flops()
        self._counted_size, _ = self._inputs.take()
        self._stop_counting()
        self._has_counted = True

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Exclude a step that was counted from the speed."""
        was_counting = self._inputs.on_failure is not None
        if was_counting:
            self._inputs.on_failure = None
            self._stop_counting()
            self._restart(state)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Exclude the time for evaluating, predicting and saving from the speed."""
        self._restart(state)

    # Typed as Any: on_predict of the base class has a required parameter, `metrics`.
    on_predict: Any = on_evaluate
    on_save = on_evaluate

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        *,
        model: nn.Module | None = None,
        train_dataloader: object = None,
        **kwargs: object,
    ) -> None:
        """Add the speeds."""
        if is_training_log(logs):
            speeds = self._measure(args, state, model, train_dataloader)
            add_to_logs(logs, state, speeds)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Remove the hooks from the model."""
        self._stop_counting()
        self._inputs.attach(None)

    def _restart(self, state: TrainerState) -> None:
        self._inputs.take()
        self._speed_meter.start(state)

    def _stop_counting(self) -> None:
        counter = self._counter
        self._counter = None
        if counter is not None:
            counter.__exit__(None, None, None)  # pyright: ignore[reportUnknownMemberType] - untyped in torch

    def _measure(
        self,
        args: TrainingArguments,
        state: TrainerState,
        model: nn.Module | None,
        train_dataloader: object,
    ) -> dict[str, float]:
        """Return the speeds since the last log or pause, by their names in the logs."""
        input_size, input_tokens = self._inputs.take()
        flops_per_step = self._estimated_flops_per_step(state)
        meter = self._speed_meter
        if not meter.measure(args, state, train_dataloader):
            return {}
        world_size = getattr(args, "world_size", 1)

        # The counts of the state are those of all processes, the inputs those of this one.
        amounts = {
            "samples_per_second": meter.samples,
            "steps_per_second": meter.steps,
            "tokens_per_second": meter.tokens or input_tokens * world_size,
        }
        speeds: dict[str, float] = {}
        for name, amount in amounts.items():
            if amount:
                speeds[name] = _rounded(amount / meter.seconds)

        # Operations are counted over all processes, the peak is that of one device.
        flops = self._flops_done(input_size, world_size, flops_per_step)
        if flops:
            flops_per_second = flops / meter.seconds
            speeds["flops_per_second"] = _rounded(flops_per_second)
            speeds |= self._utilization(flops_per_second / world_size, args, model)
        return speeds

    def _estimated_flops_per_step(self, state: TrainerState) -> float:
        """Return the operations of one step as the model estimates them; 0 if it does not."""
        last_step, last_flos = self._last_estimate
        self._last_estimate = (state.global_step, state.total_flos)
        return (state.total_flos - last_flos) / max(state.global_step - last_step, 1)

    def _flops_done(self, input_size: int, world_size: int, flops_per_step: float) -> float:
        """Return the operations since the last log or pause, of all processes; 0 if unknown.

        Args:
            input_size: numbers in the inputs of the model, of this process.
            world_size: the number of processes.
            flops_per_step: the estimate of the model.
        """
        meter = self._speed_meter
        if self.flops is None:
            return 0
        if not isinstance(self.flops, str):
            return float(self.flops) * meter.samples
        if not self._counted_flops:
            return flops_per_step * meter.steps

        # As many times the operations of the counted step as the inputs are larger than its inputs.
        counted_steps = float(meter.steps)
        if self._counted_size:
            counted_steps = input_size / self._counted_size
        return self._counted_flops * world_size * counted_steps

    def _utilization(
        self, flops_per_second: float, args: TrainingArguments, model: nn.Module | None
    ) -> dict[str, float]:
        """Return the fraction of the peak as `mfu`.

        Empty if the peak is unknown. It is empty too if the speed is above the peak, as the peak
        must be wrong then.

        Args:
            flops_per_second: of one device.
            args: the training arguments.
            model: the model on that device.
        """
        peak = self.peak_flops or _peak_flops_of_device(args, model)
        if peak is None:
            return {}
        if flops_per_second <= peak:
            return {"mfu": _rounded(flops_per_second / peak)}

        # No device is faster than its peak.
        if not self._has_warned_of_peak:
            self._has_warned_of_peak = True
            logger.warning(
                "mfu is not logged: the measured %.4g FLOP/s per device are above the peak of "
                "%.4g. Set peak_flops of ThroughputCallback, which is %r.",
                flops_per_second,
                peak,
                self.peak_flops,
            )
        return {}


class _InputMeter:
    """Counts the numbers and tokens in the inputs of a model in training, by hooks.

    Attributes:
        on_failure: called when a forward pass fails.
    """

    def __init__(self) -> None:
        self.on_failure: Callable[[], None] | None = None
        self._size = 0
        self._tokens = 0
        self._hooks: list[RemovableHandle] = []

    def attach(self, model: nn.Module | None) -> None:
        """Measure this model instead of the previous one; None for no model."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.on_failure = None
        self.take()
        if model is not None and hasattr(model, "register_forward_pre_hook"):
            self._hooks = [
                model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
                model.register_forward_hook(self._after_forward, always_call=True),
            ]

    def take(self) -> tuple[int, int]:
        """Return the counts of numbers and tokens since the last call, and reset them."""
        counts = (self._size, self._tokens)
        self._size = 0
        self._tokens = 0
        return counts

    def _before_forward(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> None:
        if not module.training:
            return
        tensor = _main_input(module, args, kwargs)
        if tensor is None:
            return
        self._size += tensor.numel()
        is_integer = not (tensor.is_floating_point() or tensor.is_complex())
        if is_integer and tensor.ndim == 2:
            self._tokens += tensor.numel()

    def _after_forward(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        # With `always_call`, the output is None if the forward pass has raised an error.
        if output is None and self.on_failure is not None:
            self.on_failure()


def _main_input(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> torch.Tensor | None:
    """Return the tensor whose size measures the work of a forward pass.

    That is the model's main input, otherwise the first tensor with dimensions.
    """
    batch: Mapping[str, Any] = kwargs
    if args and hasattr(args[0], "keys"):
        batch = {**args[0], **kwargs}
    main_name = getattr(module, "main_input_name", "input_ids")
    candidates = [batch.get(main_name), *args, *batch.values()]
    for candidate in candidates:
        if hasattr(candidate, "numel") and getattr(candidate, "ndim", 0):
            return candidate
    return None


def _rounded(value: float) -> float:
    """Round to six significant digits; more are noise."""
    return float(f"{value:.6g}")


def _is_positive_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return value > 0


def _peak_flops_of_device(args: TrainingArguments, model: nn.Module | None) -> float | None:
    """Return the peak FLOP/s of the model's device with the dtype in use; None if unknown."""
    if model is None or not hasattr(model, "parameters"):
        return None
    weight = next(iter(model.parameters()), None)
    if weight is None or weight.device.type != "cuda":
        return None
    import torch

    from ._flops import may_use_tf32, peak_flops

    # Under mixed precision the products are computed in the lower one.
    if getattr(args, "bf16", False):
        dtype_name = "bfloat16"
    elif getattr(args, "fp16", False):
        dtype_name = "float16"
    else:
        dtype_name = str(weight.dtype).removeprefix("torch.")
    device_name = torch.cuda.get_device_name(weight.device)
    return peak_flops(device_name, dtype_name, tf32=may_use_tf32())
