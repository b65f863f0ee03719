"""Profile some steps of a training: the time of each part, and a trace."""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from ._compilation import is_compiled
from ._files import write_atomically
from .base import TrainerCallback
from .state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from torch import nn
    from torch.profiler import profile
    from torch.utils.hooks import RemovableHandle

    from ..facade import TrainingArguments


logger = logging.getLogger(__name__)


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
    """Reports the time of each part of some steps, and writes a trace. Not in transformers.

    It uses `torch.profiler`. After the profiled steps process 0 prints a table, and writes into
    `<output_dir>/profile`: `profile.txt`, and `trace.json` for https://ui.perfetto.dev. During
    these steps the device is synchronized at the end of each part, so that the time of a part
    includes the computations of the device for it.

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
        self._has_accelerator = False

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
        self.close()
        self._has_accelerator = False
        if model is not None:
            self._has_accelerator = any(
                weight.device.type != "cpu" for weight in model.parameters()
            )
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

    def close(self) -> None:
        """Stop the profiler and remove the hooks, after a training that ended with an error."""
        profiler = self._profiler
        self._profiler = None
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if profiler is not None:
            profiler.stop()

    def _start_counting_if_due(self, args: TrainingArguments, model: nn.Module | None) -> None:
        if self._steps != self.wait + self.warmup:
            return
        self.seconds.clear()
        self._last_event_time = time.perf_counter()

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

        # Kernels run asynchronously.
        if self._has_accelerator:
            torch.accelerator.synchronize()
        now = time.perf_counter()
        self.seconds[part] += now - self._last_event_time
        self._last_event_time = now

    def _finish(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl
    ) -> None:
        """Stop the profiler, and report its steps; without effect if that was done before."""
        profiler = self._profiler
        if profiler is None:
            return
        self.close()

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

        if steps > 0 and state.is_world_process_zero:
            folder = Path(str(args.output_dir)) / "profile"
            folder.mkdir(parents=True, exist_ok=True)
            # Rename the finished trace, so that a former one is replaced as a whole.
            unfinished_trace = folder / ".trace.json.tmp"
            profiler.export_chrome_trace(str(unfinished_trace))
            unfinished_trace.replace(folder / "trace.json")
            table = _table(self.seconds, steps)
            write_atomically(folder / "profile.txt", f"{table}\n".encode())
            # The empty first line ends the line of a progress bar.
            print("", table, f"table and trace: {folder}", sep="\n")


def _ignore_trace(profiler: profile) -> None:
    """Do nothing with a trace, as `on_trace_ready`."""


def _table(seconds: dict[str, float], steps: int) -> str:
    """Return name, milliseconds a step and share of each part, the largest first."""
    total = sum(seconds.values())
    lines = [f"{steps} steps, each:"]
    for part in sorted(seconds, key=lambda part: seconds[part], reverse=True):
        milliseconds = 1e3 * seconds[part] / steps
        share = seconds[part] / total
        lines.append(f"{part:<12} {milliseconds:>9.2f} ms {share:>5.0%}")
    return "\n".join(lines)
