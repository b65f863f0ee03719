"""Log throughput and model FLOPs utilization."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from ._log_values import add_to_logs, is_training_log
from ._work import Stretch
from .base import TrainerCallback
from .state import TrainerControl, TrainerState

logger = logging.getLogger(__name__)


class ThroughputCallback(TrainerCallback):
    """No counterpart in transformers: adds the speed of the last steps, and how much of the device it uses.

    Added to each log of the training, over all processes:

    - `samples_per_second`, `steps_per_second`
    - `tokens_per_second`: where the model is given tokens, that is, whole numbers in two dimensions, as its main input.
      With `include_num_input_tokens_seen` what that counts.
    - `flops_per_second`: floating point operations, forward and backward.
    - `mfu`: these as a share of what the devices can do at most, 0 to 1 (model FLOPs utilization: Chowdhery et al.
      2022, PaLM, appendix B). Only where the peak is known.

    Time and steps count from the latest log, evaluation or checkpoint, so evaluating and saving are left out. The
    device is not synchronized: a log has just fetched the loss anyway.

    Args:
        flops: where the number of operations comes from. "count" watches the first step of a training operation by
            operation (a few times slower; it is left out of all speeds) and goes by the size of the inputs from there
            on. Operations that activation checkpointing repeats count twice. "model" takes what the model estimates of
            itself (`floating_point_ops`, in `state.total_flos`), as does "count" for a compiled model, whose
            operations cannot be watched. A number is that of one sample; `None` leaves operations out.
        peak_flops: FLOP/s that one device can do at most with the numbers in use. Where it is `None`, the data sheets
            of NVIDIA and AMD say it for the devices known here.

    Raises:
        ValueError: `flops` or `peak_flops` is none of these.
    """

    adds_to_logs = True
    reads_checkpoints = False

    def __init__(self, flops: str | float | None = "count", peak_flops: float | None = None) -> None:
        if not (flops is None or flops in ("count", "model") or (_is_number(flops) and float(flops) > 0)):
            raise ValueError(
                f"flops is {flops!r}, but has to be 'count', 'model', None, or the operations that one sample takes."
            )
        if peak_flops is not None and not (_is_number(peak_flops) and peak_flops > 0):
            raise ValueError(f"peak_flops is {peak_flops!r}, but it is a number of FLOP/s, such as 312e12, or None.")
        self.flops = flops
        self.peak_flops = peak_flops
        self._stretch = Stretch()
        self._inputs = _Inputs()
        self._watch: Any = None
        self._counted: Counter[str] = Counter()
        self._counted_size = 0
        self._is_counted = False
        self._estimated = (0, 0.0)
        self._too_low = False

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        """Begin to count what the model is given."""
        self._end_watching()
        compiled = _is_compiled(model) or bool(getattr(args, "torch_compile", False))
        self._inputs.watch(None if compiled else model)
        self._counted.clear()
        self._is_counted = self.flops != "count" or compiled or model is None
        self._estimated = (state.global_step, state.total_flos)
        self._stretch.begin(state)

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Watch the first step."""
        self._end_watching()
        if not self._is_counted:
            from ._flops import FlopCount

            self._inputs.take()
            self._watch = FlopCount()
            self._watch.__enter__()
            self._inputs.on_failure = self._end_watching

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Note what forward and backward pass took."""
        if self._watch is not None:
            self._counted = self._watch.by_type
            self._counted_size, _ = self._inputs.take()
            self._end_watching()
            self._is_counted = True

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Leave a step that was watched out of the speed."""
        if self._inputs.on_failure is not None:
            self._inputs.on_failure = None
            self._end_watching()
            self._begin(state)

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Keep the time for evaluating out of the speed."""
        self._begin(state)

    def on_predict(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any
    ) -> None:
        """Keep the time for predicting out of the speed."""
        self._begin(state)

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Keep the time for saving out of the speed."""
        self._begin(state)

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: Any = None,
        model: Any = None,
        train_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        """Add the speeds."""
        if is_training_log(logs):
            add_to_logs(logs, state, self._measure(args, state, model, train_dataloader))

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Leave the model as it was."""
        self._end_watching()
        self._inputs.watch(None)

    def _begin(self, state: TrainerState) -> None:
        self._inputs.take()
        self._stretch.begin(state)

    def _end_watching(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.__exit__(None, None, None)

    def _measure(self, args: Any, state: TrainerState, model: Any, loader: Any) -> dict[str, float]:
        size, tokens = self._inputs.take()
        stretch = self._stretch
        estimate = self._estimate(state)
        if not stretch.end(args, state, loader):
            return {}
        world = getattr(args, "world_size", 1)
        found = {"samples": stretch.samples, "steps": stretch.steps, "tokens": stretch.tokens or tokens * world}
        speeds = {f"{name}_per_second": _rounded(done / stretch.seconds) for name, done in found.items() if done}
        flops = self._flops_done(stretch, size, world, estimate)
        if flops:
            speeds["flops_per_second"] = _rounded(flops.total() / stretch.seconds)
            speeds |= self._share(flops, stretch.seconds * world, args, model)
        return speeds

    def _estimate(self, state: TrainerState) -> float:
        """Operations of one step, as the model estimates them; 0 where it does not."""
        steps, flos = self._estimated
        self._estimated = (state.global_step, state.total_flos)
        return (state.total_flos - flos) / max(state.global_step - steps, 1)

    def _flops_done(self, stretch: Stretch, size: int, world: int, estimate: float) -> Counter[str]:
        """Operations of the stretch in all processes, by the type of the numbers, which is empty if not known."""
        if self.flops is None:
            return Counter()
        if _is_number(self.flops):
            return Counter({"": round(float(self.flops) * stretch.samples)})
        if not self._counted:
            return Counter({"": round(estimate * stretch.steps)} if estimate > 0 else {})
        times = size / self._counted_size if self._counted_size else stretch.steps
        return Counter({kind: round(count * times * world) for kind, count in self._counted.items()})

    def _share(self, flops: Counter[str], seconds: float, args: Any, model: Any) -> dict[str, float]:
        """The share of the peak; nothing where that is not known, or is passed, which no device can do."""
        least = 0.0
        for kind, count in flops.items():
            peak = self.peak_flops or _peak(model, kind or _type_in_use(args, model))
            if peak is None:
                return {}
            least += count / peak
        share = least / seconds
        if share <= 1:
            return {"mfu": _rounded(share)}
        if not self._too_low:
            self._too_low = True
            logger.warning(
                "The training does %.4g FLOP/s, which is %.0f %% of what is given as the most that is possible, so no "
                "mfu is logged. Set peak_flops of ThroughputCallback (now %r) to what one device can do with these "
                "numbers.",
                flops.total() / seconds,
                100 * share,
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
        """The numbers and the tokens that the model was given since the last time."""
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
        if output is None and self.on_failure is not None:  # it raised an error: nothing may go on watching
            self.on_failure()


def _main_input(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The tensor that says how much there is to do: the model's main input, or else the first one."""
    name = getattr(module, "main_input_name", "input_ids")
    batch = {**args[0], **kwargs} if args and hasattr(args[0], "keys") else kwargs
    candidates = [batch.get(name), *(arg for arg in args), *batch.values()]
    return next((one for one in candidates if hasattr(one, "numel") and getattr(one, "ndim", 0)), None)


def _is_compiled(model: Any) -> bool:
    return hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None


def _rounded(value: float) -> float:
    """Six digits: more are chance, and hard to read."""
    return float(f"{value:.6g}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _type_in_use(args: Any, model: Any) -> str:
    """The type of the numbers that are multiplied, as far as the arguments and the weights tell."""
    if getattr(args, "bf16", False):
        return "bfloat16"
    if getattr(args, "fp16", False):
        return "float16"
    weight = next(iter(model.parameters()), None) if hasattr(model, "parameters") else None
    return "float32" if weight is None else str(weight.dtype).removeprefix("torch.")


def _peak(model: Any, kind: str) -> float | None:
    from ._flops import device_name, may_use_tf32, peak_flops

    weight = next(iter(model.parameters()), None) if hasattr(model, "parameters") else None
    name = "" if weight is None else device_name(weight.device)
    return peak_flops(name, kind, tf32=may_use_tf32()) if name else None
