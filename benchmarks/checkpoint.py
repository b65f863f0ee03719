"""How long training stands still for a periodic checkpoint: lightrainer / reference, in one run.

A model of 8.4 million parameters with Adam: 100 MB of state. Reference and lightrainer train in turns, and save every
few steps. The standstill is the time between the end of such a step and the beginning of the next one, beyond that
between other steps, by the clock on the wall: training waits for the disk too. The goal is 0.2.

The background thread needs a processor meanwhile. So a second number is what a checkpoint costs in all, by the time of
the processor: how much more the steps took with checkpoints than without. Flushing to the disk is in it.
"""

import contextlib
import io
import statistics
import tempfile
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from .common import LIBRARIES, Figure, interleaved, library, medians, quiet_arguments, report

WIDTH = 1448
BATCH = 128
EVERY = (
    10  # steps; of 0.2 s or so, which leaves the disk as much time as the reference takes for a checkpoint, and more
)
CHECKPOINTS = 4
FIRST = 3  # steps that warm up
ROUNDS = 4


class FourLayers(nn.Module):
    """Four square layers of 2.1 million weights each."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """The mean of the outputs, for `x` of shape (batch, width)."""
        outputs = self.layers(x)
        return {"loss": outputs.square().mean(), "logits": outputs}


def training(name: str, dataset: list[dict[str, torch.Tensor]]) -> dict[str, float]:
    """Seconds for each checkpoint: the standstill, and all that it costs."""
    api = library(name)
    begins: dict[int, float] = {}
    ends: dict[int, float] = {}
    spent: dict[int, float] = {}

    class Clock(api.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            begins[state.global_step] = time.perf_counter()

        def on_step_end(self, args, state, control, **kwargs):
            ends[state.global_step] = time.perf_counter()
            spent[state.global_step] = time.process_time()

    torch.manual_seed(0)
    steps = EVERY * (CHECKPOINTS + 1)
    with tempfile.TemporaryDirectory(dir=".") as folder, contextlib.redirect_stdout(io.StringIO()):
        changes = {"save_strategy": "steps", "save_steps": EVERY, "save_total_limit": 2, "max_steps": steps}
        arguments = quiet_arguments(name, folder, per_device_train_batch_size=BATCH, **changes)
        trainer: Any = api.Trainer(
            FourLayers(), arguments, train_dataset=dataset, data_collator=default_collate, callbacks=[Clock()]
        )
        trainer.train()
    return costs(begins, ends, spent)


def costs(begins: dict[int, float], ends: dict[int, float], spent: dict[int, float]) -> dict[str, float]:
    """See `training`; the times by the number of steps done."""
    saved = [EVERY * number for number in range(1, CHECKPOINTS + 1)]
    between = {step: begins[step] - ends[step] for step in ends if step in begins}
    usual = statistics.median(seconds for step, seconds in between.items() if step not in saved)
    quiet = (spent[EVERY] - spent[FIRST]) / (EVERY - FIRST)
    whole = spent[EVERY * (CHECKPOINTS + 1)] - spent[EVERY]
    return {
        "standstill": statistics.median(between[step] for step in saved) - usual,
        "cost": (whole - quiet * EVERY * CHECKPOINTS) / CHECKPOINTS,
        "step": quiet,
    }


def main() -> list[Figure]:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    dataset = [{"x": x} for x in torch.randn(4 * BATCH, WIDTH, generator=generator)]
    measured = interleaved(ROUNDS, {name: lambda name=name: training(name, dataset) for name in LIBRARIES})
    rows: list[tuple[str, str]] = []
    results: dict[str, Any] = {}
    for what, label in (("standstill", "training stands still"), ("cost", "processor time in all")):
        rounds = {name: [each[what] for each in values] for name, values in measured.items()}
        seconds = medians(rounds)
        ratio = seconds["lightrainer"] / seconds["transformers"]
        rows += [(f"{name}, {label}", f"{value * 1e3:6.0f} ms a checkpoint") for name, value in seconds.items()]
        rows.append((f"lightrainer / transformers, {label}", f"{ratio:.2f}"))
        results[what] = {"seconds": seconds, "ratio": ratio, "rounds": rounds}
    steps = medians({name: [each["step"] for each in values] for name, values in measured.items()})
    rows += [(f"{name}, a step without a checkpoint", f"{value * 1e3:6.0f} ms") for name, value in steps.items()]
    figures = [
        Figure("training stands still for a checkpoint of 100 MB", results["standstill"]["ratio"], 0.2),
        Figure("processor time of such a checkpoint", results["cost"]["ratio"], 1.5),
    ]
    return report("checkpoint", rows, {**results, "steps": steps}, figures)


if __name__ == "__main__":
    main()
