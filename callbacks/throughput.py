"""Log throughput and model FLOPs utilization."""

from __future__ import annotations

import logging
from typing import Any

from ._log_values import add_to_logs, is_training_log
from ._work import Stretch, is_compiled
from .base import TrainerCallback
from .state import TrainerControl, TrainerState

logger = logging.getLogger(__name__)


class ThroughputCallback(TrainerCallback):
    """No counterpart in transformers: adds the speed of the last steps, and the share of the
    device's peak.

    Added to each log of the training, over all processes:

    - `samples_per_second`, `steps_per_second`
    - `tokens_per_second`: where the model's main input is tokens, that is, whole numbers in two
      dimensions. With `include_num_input_tokens_seen` those that it counts.
    - `flops_per_second`: floating point operations, forward and backward.
    - `mfu`: these as a share of the devices' peak, 0 to 1 (model FLOPs utilization: Chowdhery et
      al. 2022, PaLM, appendix B). Only where the peak is known.

    Time and steps count from the latest log, evaluation or checkpoint, so evaluating and saving are
    left out. The device is not synchronized: a log has just fetched the loss anyway.

    Args:
        flops: where the number of operations comes from. "count" watches the first step of a
            training operation by operation (a few times slower; it is left out of all speeds) and
            goes by the size of the inputs from there on. Operations that activation checkpointing
            repeats count twice. "model" takes what the model estimates of itself
            (`floating_point_ops`, in `state.total_flos`), as does "count" for a compiled model,
            whose operations cannot be watched. A number is that of one sample; `None` leaves
            operations out.
        peak_flops: FLOP/s that one device can do at most with the numbers in use. Where it is
            `None`, the data sheets of NVIDIA and AMD say it for the devices known here.

    Raises:
        ValueError: `flops` or `peak_flops` is none of these.
    """

    adds_to_logs = True
    reads_checkpoints = False

    def __init__(
        self, flops: str | float | None = "count", peak_flops: float | None = None
    ) -> None:
        if not (
            flops is None or flops in ("count", "model") or (_is_number(flops) and float(flops) > 0)
        ):
            raise ValueError(
                f"flops is {flops!r}, but has to be 'count', 'model', None, or operations per "
                "sample."
            )
        if peak_flops is not None and not (_is_number(peak_flops) and peak_flops > 0):
            raise ValueError(
                f"peak_flops is {peak_flops!r}, but it is a number of FLOP/s, such as 312e12, or "
                "None."
            )
        self.flops = flops
        self.peak_flops = peak_flops
        self._stretch = Stretch()
        self._inputs = _Inputs()
        self._watch: Any = None
        self._counted = 0
        self._counted_size = 0
        self._is_counted = False
        self._estimated = (0, 0.0)
        self._too_low = False

    def on_train_begin(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Begin to count what the model is given."""
        self._end_watching()
        compiled = is_compiled(args, model) or hasattr(model, "_orig_mod")
        self._inputs.watch(None if compiled else model)
        self._counted = 0
        self._is_counted = self.flops != "count" or compiled or model is None
        self._estimated = (state.global_step, state.total_flos)
        self._stretch.begin(state)

    def on_step_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Watch the first step."""
        self._end_watching()
        if not self._is_counted:
            from ._flops import flop_counter

            self._inputs.take()
            self._watch = flop_counter()
            self._watch.__enter__()
            self._inputs.on_failure = self._end_watching

    def on_pre_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Note what forward and backward pass took."""
        if self._watch is not None:
            self._counted = self._watch.get_total_flops()
            self._counted_size, _ = self._inputs.take()
            self._end_watching()
            self._is_counted = True

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave a step that was watched out of the speed."""
        if self._inputs.on_failure is not None:
            self._inputs.on_failure = None
            self._end_watching()
            self.on_evaluate(args, state, control)

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the time for evaluating, predicting and saving out of the speed."""
        self._inputs.take()
        self._stretch.begin(state)

    on_predict: Any = on_evaluate
    on_save = on_evaluate

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: Any = None,
        **kwargs: Any,
    ) -> None:
        """Add the speeds."""
        if is_training_log(logs):
            add_to_logs(
                logs,
                state,
                self._measure(args, state, kwargs.get("model"), kwargs.get("train_dataloader")),
            )

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the model as it was."""
        self._end_watching()
        self._inputs.watch(None)

    def _end_watching(self) -> None:
        watch = self._watch
        self._watch = None
        if watch is not None:
            watch.__exit__(None, None, None)

    def _measure(self, args: Any, state: TrainerState, model: Any, loader: Any) -> dict[str, float]:
        size, tokens = self._inputs.take()
        stretch = self._stretch
        estimate = self._estimate(state)
        if not stretch.end(args, state, loader):
            return {}
        world = getattr(args, "world_size", 1)
        found = {
            "samples": stretch.samples,
            "steps": stretch.steps,
            "tokens": stretch.tokens or tokens * world,
        }
        speeds = {
            f"{name}_per_second": _rounded(done / stretch.seconds)
            for name, done in found.items()
            if done
        }
        flops = self._flops_done(stretch, size, world, estimate)
        if flops:
            speeds["flops_per_second"] = _rounded(flops / stretch.seconds)
            speeds |= self._share(flops / stretch.seconds / world, args, model)
        return speeds

    def _estimate(self, state: TrainerState) -> float:
        """Return the operations of one step, as the model estimates them; 0 where it does not."""
        steps, flos = self._estimated
        self._estimated = (state.global_step, state.total_flos)
        return (state.total_flos - flos) / max(state.global_step - steps, 1)

    def _flops_done(self, stretch: Stretch, size: int, world: int, estimate: float) -> float:
        """Return the operations of the stretch in all processes; 0 where they are not known."""
        if self.flops is None:
            return 0
        if _is_number(self.flops):
            return float(self.flops) * stretch.samples
        if not self._counted:
            return estimate * stretch.steps
        return (
            self._counted
            * world
            * (size / self._counted_size if self._counted_size else stretch.steps)
        )

    def _share(self, speed: float, args: Any, model: Any) -> dict[str, float]:
        """Return the share of the peak that `speed` is, in FLOP/s of one device.

        Nothing is returned where the peak is not known, or is passed, which no device can do.
        """
        peak = self.peak_flops or _peak(args, model)
        if peak is None:
            return {}
        if speed <= peak:
            return {"mfu": _rounded(speed / peak)}
        if not self._too_low:
            self._too_low = True
            logger.warning(
                "ThroughputCallback: %.4g FLOP/s of a device are above its peak, %.4g: no mfu. Set "
                "peak_flops (%r).",
                speed,
                peak,
                self.peak_flops,
            )
        return {}


class _Inputs:
    """Counts what a model is given in training, by looking at shapes as its forward pass begins."""

    def __init__(self) -> None:
        self.on_failure: Any = None
        self._size = 0
        self._tokens = 0
        self._hooks: list[Any] = []

    def watch(self, model: Any) -> None:
        """Watch this model instead of the one before; None for no model."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.on_failure = None
        self.take()
        if hasattr(model, "register_forward_pre_hook"):
            before = model.register_forward_pre_hook(self._before, with_kwargs=True)
            after = model.register_forward_hook(self._after, always_call=True)
            self._hooks = [before, after]

    def take(self) -> tuple[int, int]:
        """Return the numbers and the tokens that the model was given since the last call."""
        taken = (self._size, self._tokens)
        self._size = self._tokens = 0
        return taken

    def _before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module.training:
            tensor = _main_input(module, args, kwargs)
            if tensor is not None:
                self._size += tensor.numel()
                if tensor.ndim == 2 and not (tensor.is_floating_point() or tensor.is_complex()):
                    self._tokens += tensor.numel()

    def _after(self, module: Any, args: Any, output: Any) -> None:
        # it raised an error, and has to run unwatched
        if output is None and self.on_failure is not None:
            self.on_failure()


def _main_input(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the tensor whose size measures the work: the model's main input, or else the first
    one.
    """
    name = getattr(module, "main_input_name", "input_ids")
    batch = {**args[0], **kwargs} if args and hasattr(args[0], "keys") else kwargs
    candidates = [batch.get(name), *(arg for arg in args), *batch.values()]
    return next(
        (one for one in candidates if hasattr(one, "numel") and getattr(one, "ndim", 0)), None
    )


def _rounded(value: float) -> float:
    """Round to six digits: more are noise."""
    return float(f"{value:.6g}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _peak(args: Any, model: Any) -> float | None:
    """Return the FLOP/s that the model's device can do with the numbers that are multiplied."""
    weight = next(iter(model.parameters()), None) if hasattr(model, "parameters") else None
    if weight is None or weight.device.type != "cuda":
        return None
    import torch

    from ._flops import may_use_tf32, peak_flops

    names = {"bf16": "bfloat16", "fp16": "float16"}
    kind = next(
        (name for flag, name in names.items() if getattr(args, flag, False)), str(weight.dtype)
    )
    device = torch.cuda.get_device_name(weight.device)
    return peak_flops(device, kind.removeprefix("torch."), tf32=may_use_tf32())
