"""Profile some steps of a training: the time of each part, advice, and a trace."""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch

from ._compilation import is_compiled
from .base import TrainerCallback
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from torch import nn
    from torch.profiler import profile
    from torch.utils.hooks import RemovableHandle

    from ..facade import TrainingArguments


logger = logging.getLogger(__name__)

_COLLECTIVE_PREFIXES = ("gloo:", "nccl:", "xccl:", "mpi:")
"""The names of collective operations in a profile begin with their backend."""

_COMMUNICATION = "backward: exchange of gradients"
_WAITING = "waiting for the device"
_CONTAINED_PARTS = (_COMMUNICATION, _WAITING)
"""Parts whose time is also in the time of other parts."""

_MAX_ALLOCATIONS = 100_000
"""Allocations that torch keeps in its memory history, as in its examples."""


class _EventAverage(Protocol):
    """The attributes of torch's `FunctionEventAvg` that are read here; times in microseconds."""

    key: str
    cpu_time_total: float
    device_time_total: float


def _counted_as(part: str) -> Callable[..., None]:
    """Return an event that adds the time since the last event to a part."""

    def event(
        self: ProfilerCallback,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        self._count_time(part)  # pyright: ignore[reportPrivateUsage] - the event is a method of the class

    event.__doc__ = f"Count the time since the last event as that of the {part}."
    return event


class ProfilerCallback(TrainerCallback):
    """Reports the time of each part of some steps, and gives advice. Not in transformers.

    It uses `torch.profiler`. After the profiled steps process 0 prints a table, and writes into
    `<output_dir>/profile`: `profile.txt`, `trace.json` for https://ui.perfetto.dev, and on CUDA
    `memory.pickle`, the allocations of its GPU for https://pytorch.org/memory_viz. During these
    steps the device is synchronized at the end of each part, so that the time of a part includes
    the computations of the device for it.

    Args:
        wait: steps before the profiler starts.
        warmup: steps in which the profiler runs, but which do not count.
        active: steps that count, with the logs, evaluations and checkpoints between them.
        stop: whether to end the training afterwards.

    Attributes:
        seconds: the time of each part, over all steps that count.

    Raises:
        ValueError: `warmup` or `active` is below 1, or `wait` is below 0.
    """

    reads_checkpoints = False

    def __init__(
        self, wait: int = 5, warmup: int = 2, active: int = 10, *, stop: bool = False
    ) -> None:
        if wait < 0 or warmup < 1 or active < 1:
            raise ValueError(
                f"ProfilerCallback: {wait=} must be at least 0, {warmup=} and {active=} at least 1."
            )
        self.wait = wait
        self.warmup = warmup
        self.active = active
        self.stop = stop
        self.seconds: dict[str, float] = collections.defaultdict(float)

        self._profiler: profile | None = None
        self._hooks: list[RemovableHandle] = []
        self._steps = 0
        self._last_event_time = 0.0
        self._accelerator = ""  # the device type of the model; empty on the CPU

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Start the profiler, which waits at first."""
        self._accelerator = _accelerator_of(model)
        self._steps = 0
        self._last_event_time = time.perf_counter()

        # The trace is written at the end, with the table, and not by the profiler.
        schedule = cast(
            "Callable[[int], torch.profiler.ProfilerAction]",
            torch.profiler.schedule(  # pyright: ignore[reportUnknownMemberType] - untyped in torch
                wait=self.wait, warmup=self.warmup, active=self.active, repeat=1
            ),
        )
        self._profiler = torch.profiler.profile(schedule=schedule, on_trace_ready=_ignore_trace)
        self._profiler.start()
        self._start_counting_if_due(args, model)

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Count the time since the last event as time for reading data."""
        self._count_time("data")
        if self._steps == self.wait + self.warmup + self.active:
            self._finish(args, state, control)

    # This includes the exchange of gradients, and clipping.
    on_substep_end = on_pre_optimizer_step = _counted_as("backward")
    on_optimizer_step = _counted_as("optimizer")
    on_log = _counted_as("logging")
    on_evaluate = _counted_as("evaluation")
    on_save = _counted_as("saving")

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Count the time for callbacks and the schedule."""
        self._count_time("callbacks")
        self._steps += 1
        if self._profiler is not None:
            self._profiler.step()
            self._start_counting_if_due(args, model)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Report the steps of a training that ended early."""
        self._finish(args, state, control)

    def _start_counting_if_due(self, args: TrainingArguments, model: nn.Module | None) -> None:
        if self._steps != self.wait + self.warmup:
            return
        self.seconds.clear()
        self._last_event_time = time.perf_counter()
        if self._accelerator == "cuda":
            _record_allocations(max_entries=_MAX_ALLOCATIONS)

        # Hooks of a compiled model would be compiled too.
        if model is not None and not is_compiled(args, model):
            self._hooks = [
                model.register_forward_pre_hook(self._before_forward),
                model.register_forward_hook(self._after_forward),
            ]

    def _before_forward(self, module: nn.Module, inputs: object) -> None:
        if module.training:
            self._count_time("data")

    def _after_forward(self, module: nn.Module, inputs: object, output: object) -> None:
        if module.training:
            self._count_time("forward")

    def _count_time(self, part: str) -> None:
        """Add the time since the last event to a part, in the steps that count."""
        if self._profiler is None or self._steps < self.wait + self.warmup:
            return

        # Kernels run asynchronously: the time until they are done is that of waiting.
        if self._accelerator:
            wait_start = time.perf_counter()
            torch.accelerator.synchronize()
            self.seconds[_WAITING] += time.perf_counter() - wait_start
        now = time.perf_counter()
        self.seconds[part] += now - self._last_event_time
        self._last_event_time = now

    def _finish(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl
    ) -> None:
        """Stop the profiler, and report its steps; without effect if that was done before."""
        profiler = self._profiler
        self._profiler = None
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if profiler is None:
            return

        profiler.stop()
        steps = min(self._steps - self.wait - self.warmup, self.active)
        if steps <= 0 and state.is_world_process_zero:
            logger.warning(
                "No step was profiled: the training ended after %d steps, and the profiler waits "
                "for %d steps. Train longer, or lower wait=%d and warmup=%d.",
                self._steps,
                self.wait + self.warmup,
                self.wait,
                self.warmup,
            )
        if self.stop and steps == self.active:
            control.should_training_stop = True

        # All processes stop to record allocations, process 0 writes the files.
        folder = Path(str(args.output_dir)) / "profile"
        is_writer = steps > 0 and state.is_world_process_zero
        if is_writer:
            folder.mkdir(parents=True, exist_ok=True)
        if self._accelerator == "cuda":
            if is_writer:
                snapshot_path = str(folder / "memory.pickle")
                torch.cuda.memory._dump_snapshot(snapshot_path)  # pyright: ignore[reportPrivateUsage] - torch documents it
            _record_allocations(enabled=None)
        if is_writer:
            self._report(profiler, steps, args, folder)

    def _report(self, profiler: profile, steps: int, args: TrainingArguments, folder: Path) -> None:
        """Print the table, and write it and the trace.

        Args:
            profiler: the profiler, stopped.
            steps: the number of steps that count.
            args: the training arguments.
            folder: the folder to write to.
        """
        communication = _communication_seconds(profiler)
        if communication:
            self.seconds[_COMMUNICATION] = communication
        profiler.export_chrome_trace(str(folder / "trace.json"))

        lines = [f"{steps} steps, each:"]
        lines += _table_lines(self.seconds, steps)
        lines += advice(self.seconds, args)
        table = "\n".join(lines)
        (folder / "profile.txt").write_text(f"{table}\n", encoding="utf-8")
        # The empty first line ends the line of a progress bar.
        print("", table, f"table and trace: {folder}", sep="\n")


def advice(seconds: dict[str, float], args: TrainingArguments) -> list[str]:
    """Return a line for each part that takes too long, the largest part first.

    Args:
        seconds: the time of each part.
        args: the training arguments.
    """
    has_fast_arithmetic = args.bf16 or args.fp16 or args.torch_compile
    faster_forward = "bf16=True and torch_compile=True"
    if has_fast_arithmetic:
        faster_forward = "a larger per_device_train_batch_size"
    data_remedy = (
        f"dataloader_num_workers (now {args.dataloader_num_workers}), or a cheaper data_collator"
    )
    evaluation_remedy = (
        f"eval_steps (now {args.eval_steps or args.logging_steps:g}), per_device_eval_batch_size"
    )

    # The largest acceptable share of each part, and the arguments that reduce it.
    remedies = {
        "data": (0.2, data_remedy),
        "saving": (0.1, f"save_steps (now {args.save_steps:g})"),
        "evaluation": (0.3, evaluation_remedy),
        "logging": (0.05, f"logging_steps (now {args.logging_steps:g})"),
        "callbacks": (0.1, "callbacks with on_step_end"),
        "optimizer": (0.3, "optim='adamw_torch_fused', or gradient_accumulation_steps"),
        _COMMUNICATION: (0.2, "gradient_accumulation_steps, or ddp_bucket_cap_mb"),
        "forward": (0.3, faster_forward),
    }

    total = _total_seconds(seconds)
    shares = {part: seconds.get(part, 0) / total for part in remedies}
    lines: list[str] = []
    for part in sorted(remedies, key=lambda part: shares[part], reverse=True):
        acceptable_share, remedy = remedies[part]
        if shares[part] > acceptable_share:
            lines.append(f"{part} takes {shares[part]:.0%}: look at {remedy}")
    return lines


def _ignore_trace(profiler: profile) -> None:
    """Do nothing with a trace, as `on_trace_ready`."""


def _record_allocations(**options: Any) -> None:
    """Start to record the allocations on CUDA, or stop it with `enabled=None`."""
    torch.cuda.memory._record_memory_history(**options)  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType] - torch documents it


def _accelerator_of(model: nn.Module | None) -> str:
    """Return the device type of a model's parameters that are not on the CPU; "" for none."""
    if model is None:
        return ""
    for weight in model.parameters():
        if weight.device.type != "cpu":
            return weight.device.type
    return ""


def _communication_seconds(profiler: profile) -> float:
    """Return the time of all collective operations."""
    microseconds = 0.0
    averages = cast("Iterable[_EventAverage]", profiler.key_averages())
    for event in averages:
        if event.key.startswith(_COLLECTIVE_PREFIXES):
            microseconds += max(event.cpu_time_total, event.device_time_total)
    return microseconds / 1e6


def _total_seconds(seconds: dict[str, float]) -> float:
    return sum(value for part, value in seconds.items() if part not in _CONTAINED_PARTS)


def _table_lines(seconds: dict[str, float], steps: int) -> list[str]:
    """Return name, milliseconds a step and share of each part, the largest first.

    Parts that are contained in others come last.
    """
    total = _total_seconds(seconds)
    ordered = sorted(seconds, key=lambda part: (part in _CONTAINED_PARTS, -seconds[part]))
    lines: list[str] = []
    for part in ordered:
        milliseconds = 1e3 * seconds[part] / steps
        share = seconds[part] / total
        lines.append(f"{part:<32} {milliseconds:>9.2f} ms {share:>5.0%}")
    return lines
