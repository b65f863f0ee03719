"""Measure the cost of a training step: in a bare loop, and in the trainer of a library."""

import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import default_collate

from .common import Figure, TinyModel, library, medians, quiet_arguments, report

BATCH = 8
CLOCKS: dict[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    "processor": time.process_time,
    "thread": time.thread_time,
}
"""Of the processor's time the last one leaves out that of threads in which processes exchange
something.
"""

Rounds = dict[str, list[list[float]]]
"""Seconds per step by each clock, of each round, by the name of who takes the steps."""


@dataclass(frozen=True)
class Steps:
    """How many steps are taken, and how many of them warm up caches first."""

    all: int
    skipped: int

    def per_step(self, begin: list[float], end: list[float]) -> list[float]:
        """Return the seconds per measured step, by each clock."""
        return [
            (last - first) / (self.all - self.skipped)
            for first, last in zip(begin, end, strict=True)
        ]


def now() -> list[float]:
    """Return all clocks, in seconds."""
    return [clock() for clock in CLOCKS.values()]


def bare_loop(model: nn.Module, loader: Iterable, steps: Steps) -> list[float]:
    """Return the seconds per step of the shortest loop that does the same work."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: max(0.0, 1 - step / steps.all)
    )
    total = torch.tensor(0.0)
    begin = now()
    for step, batch in enumerate(loader, start=1):
        loss = model(**batch)["loss"]
        loss.backward()
        total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step == steps.skipped:
            begin = now()
    return steps.per_step(begin, now())


def trainer_loop(
    name: str,
    dataset: list,
    steps: Steps,
    model: Callable[[], nn.Module] = TinyModel,
    **options: object,
) -> list[float]:
    """Return the seconds per step of a library's trainer, between two calls of `on_step_end`."""
    api = library(name)
    times = {}

    class Clock(api.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step in (steps.skipped, steps.all):
                times[state.global_step] = now()

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        options = {"max_steps": steps.all, "per_device_train_batch_size": BATCH, **options}
        trainer = api.Trainer(
            model(),
            quiet_arguments(name, folder, **options),
            train_dataset=dataset,
            data_collator=default_collate,
            callbacks=[Clock()],
        )
        trainer.train()
    return steps.per_step(times[steps.skipped], times[steps.all])


def show(benchmark: str, measured: Rounds, what: str, goal: float) -> list[Figure]:
    """Print the medians by each clock, and the ratio of what the libraries take beyond the bare
    loop.

    Args:
        benchmark: its name.
        measured: see `Rounds`.
        what: is promised; by the time of the processor.
        goal: the most that the ratio may be.
    """
    rows, results = [], {}
    for position, clock in enumerate(CLOCKS):
        rounds = {
            name: [values[position] * 1e6 for values in each] for name, each in measured.items()
        }
        step = medians(rounds)
        ratio = (step["lightrainer"] - step["bare"]) / (step["transformers"] - step["bare"])
        rows += [
            (f"{name}, one step, {clock} clock", f"{value:7.1f} us") for name, value in step.items()
        ]
        rows.append(
            (f"(lightrainer - bare) / (transformers - bare), {clock} clock", f"{ratio:.2f}")
        )
        results[clock] = {"microseconds": step, "ratio": ratio, "rounds": rounds}
    figure = Figure(what, results["processor"]["ratio"], goal)
    return report(benchmark, rows, results, [figure])
