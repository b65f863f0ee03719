"""Profile some steps of a training: the time of each part, advice, and a trace."""

from __future__ import annotations

import collections
import time
from pathlib import Path
from typing import Any

import torch

from ._work import is_compiled
from .base import TrainerCallback
from .state import TrainerControl, TrainerState

_BACKENDS = ("gloo:", "nccl:", "xccl:", "mpi:")  # begin the names of collectives
_EXCHANGE = "backward: exchange of gradients"
_WAITING = "waiting for the device"
_INSIDE = (_EXCHANGE, _WAITING)
_ALLOCATIONS = 100_000  # that are kept, as in torch's examples


def _counted_as(part: str) -> Any:
    """Return an event that counts the time since the last one as that of a part."""

    def event(
        self: Any, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._mark(part)

    return event


class ProfilerCallback(TrainerCallback):
    """No counterpart in transformers: says where the time of some steps goes, and what to change
    first.

    Over `torch.profiler`. After the profiled steps the first process prints a table and writes into
    `<output_dir>/profile`: `profile.txt`, `trace.json` for https://ui.perfetto.dev, and on CUDA
    `memory.pickle`, the allocations of its GPU for https://pytorch.org/memory_viz. During these
    steps the device is waited for at the end of each part, so that a part includes what the device
    computes for it.

    Args:
        wait: steps before the profiler starts.
        warmup: steps that the profiler runs for without counting them.
        active: steps that count, with the logs, evaluations and checkpoints between them.
        stop: end the training afterwards.

    Attributes:
        seconds: of each part, over all steps that count.

    Raises:
        ValueError: `warmup` or `active` is below 1, or `wait` below 0.
    """

    reads_checkpoints = False

    def __init__(
        self, wait: int = 5, warmup: int = 2, active: int = 10, *, stop: bool = False
    ) -> None:
        if wait < 0 or min(warmup, active) < 1:
            raise ValueError(
                f"ProfilerCallback: {wait=} must be 0 or more, {warmup=} and {active=} 1 or more."
            )
        self.wait = wait
        self.warmup = warmup
        self.active = active
        self.stop = stop
        self.seconds: dict[str, float] = collections.defaultdict(float)
        self._profiler: Any = None
        self._hooks: list[Any] = []
        self._steps = 0

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the profiler, which waits at first."""
        profiler = torch.profiler
        schedule = profiler.schedule(
            wait=self.wait, warmup=self.warmup, active=self.active, repeat=1
        )
        weights = [] if kwargs["model"] is None else kwargs["model"].parameters()
        self._on_device = next(
            (weight.device.type for weight in weights if weight.device.type != "cpu"), ""
        )
        self._steps = 0
        self._last = time.perf_counter()
        self._profiler = profiler.profile(schedule=schedule, on_trace_ready=lambda _: None)
        self._profiler.start()
        self._begin_if_due(args, kwargs["model"])

    def on_step_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count the time since the last event as that of reading data."""
        self._mark("data")
        if self._steps == self.wait + self.warmup + self.active:
            self._finish(args, state, control)

    # with the exchange of gradients, and clipping
    on_substep_end = on_pre_optimizer_step = _counted_as("backward")
    on_optimizer_step = _counted_as("optimizer")
    on_log, on_evaluate, on_save = map(_counted_as, ("logging", "evaluation", "saving"))

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count callbacks and the schedule."""
        self._mark("callbacks")
        self._steps += 1
        if self._profiler is not None:
            self._profiler.step()
            self._begin_if_due(args, kwargs["model"])

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the steps of a training that ended early."""
        self._finish(args, state, control)

    def _begin_if_due(self, args: Any, model: Any) -> None:
        if self._steps != self.wait + self.warmup:
            return
        self.seconds.clear()
        self._last = time.perf_counter()
        if self._on_device == "cuda":
            torch.cuda.memory._record_memory_history(max_entries=_ALLOCATIONS)
        if model is not None and not is_compiled(args, model):  # hooks would be compiled
            self._hooks = [
                model.register_forward_pre_hook(
                    lambda module, _: self._mark("data" if module.training else "")
                ),
                model.register_forward_hook(
                    lambda module, *_: self._mark("forward" if module.training else "")
                ),
            ]

    def _mark(self, part: str) -> None:
        """Add the time since the last mark to a part, or without a name leave it to the next
        one.
        """
        if not part or self._profiler is None or self._steps < self.wait + self.warmup:
            return
        if self._on_device:
            begin = time.perf_counter()
            torch.accelerator.synchronize()
            self.seconds[_WAITING] += time.perf_counter() - begin
        now = time.perf_counter()
        self.seconds[part] += now - self._last
        self._last = now

    def _finish(self, args: Any, state: TrainerState, control: TrainerControl) -> None:
        profiler = self._profiler
        self._profiler = None
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if profiler is None:
            return
        profiler.stop()
        steps = min(self._steps - self.wait - self.warmup, self.active)
        control.should_training_stop = control.should_training_stop or (
            self.stop and steps == self.active
        )
        folder = Path(args.output_dir) / "profile"
        is_writer = steps > 0 and state.is_world_process_zero
        if is_writer:
            folder.mkdir(parents=True, exist_ok=True)
        if self._on_device == "cuda":
            if is_writer:
                torch.cuda.memory._dump_snapshot(str(folder / "memory.pickle"))
            torch.cuda.memory._record_memory_history(enabled=None)
        if not is_writer:
            return
        exchanged = (e for e in profiler.key_averages() if e.key.startswith(_BACKENDS))
        if exchange := sum(max(e.cpu_time_total, e.device_time_total) for e in exchanged):
            self.seconds[_EXCHANGE] = exchange / 1e6
        profiler.export_chrome_trace(str(folder / "trace.json"))
        table = "\n".join(
            [f"{steps} steps, each:", *_lines(self.seconds, steps), *advice(self.seconds, args)]
        )
        (folder / "profile.txt").write_text(f"{table}\n", encoding="utf-8")
        # The first line ends that of a progress bar.
        print("", table, f"table and trace: {folder}", sep="\n")


def advice(seconds: dict[str, float], args: Any) -> list[str]:
    """Return what to change, the part that takes the largest share first.

    Args:
        seconds: of each part.
        args: the training arguments.
    """
    total = sum(time for part, time in seconds.items() if part not in _INSIDE)
    reduced = args.bf16 or args.fp16 or args.torch_compile
    remedies = {
        "data": (
            0.2,
            (
                f"dataloader_num_workers (now {args.dataloader_num_workers}), or a cheaper "
                "data_collator"
            ),
        ),
        "saving": (0.1, f"save_steps (now {args.save_steps:g})"),
        "evaluation": (
            0.3,
            (
                f"eval_steps (now {args.eval_steps or args.logging_steps:g}), "
                "per_device_eval_batch_size"
            ),
        ),
        "logging": (0.05, f"logging_steps (now {args.logging_steps:g})"),
        "callbacks": (0.1, "callbacks with on_step_end"),
        "optimizer": (0.3, "optim='adamw_torch_fused', or gradient_accumulation_steps"),
        _EXCHANGE: (0.2, "gradient_accumulation_steps, or ddp_bucket_cap_mb"),
        "forward": (
            0.3,
            (
                "a larger per_device_train_batch_size"
                if reduced
                else "bf16=True and torch_compile=True"
            ),
        ),
    }
    shares = {part: seconds.get(part, 0) / total for part in remedies}
    found = [(share, part) for part, share in shares.items() if share > remedies[part][0]]
    return [
        f"{part} takes {share:.0%}: look at {remedies[part][1]}"
        for share, part in sorted(found, reverse=True)
    ]


def _lines(seconds: dict[str, float], steps: int) -> list[str]:
    """Return name, milliseconds a step and share of each part, the largest first, and then what
    is inside of others.
    """
    total = sum(time for part, time in seconds.items() if part not in _INSIDE)
    ordered = sorted(seconds, key=lambda part: (part in _INSIDE, -seconds[part]))
    return [
        f"{part:<32} {1e3 * seconds[part] / steps:>9.2f} ms {seconds[part] / total:>5.0%}"
        for part in ordered
    ]
