"""A run of 20,000 steps with a log each, and writing the state of a run with 20,000 logs:
lightrainer / reference.

Both are timed by the processor, in turn.
"""

import contextlib
import os
import tempfile
import time
from functools import partial
from typing import Any

import torch
from torch.utils.data import default_collate

from .common import (
    LIBRARIES,
    Figure,
    TinyModel,
    interleaved,
    library,
    medians,
    quiet_arguments,
    report,
    tiny_dataset,
)

STEPS = 20_000
LOGS = 20_000
ROUNDS = 3


def training(name: str, dataset: list[dict[str, torch.Tensor]]) -> float:
    """Processor seconds of one run."""
    torch.manual_seed(0)
    with (
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        arguments = quiet_arguments(name, folder, max_steps=STEPS, logging_steps=1)
        inputs: dict[str, Any] = {"train_dataset": dataset, "data_collator": default_collate}
        trainer = library(name).Trainer(TinyModel(), arguments, **inputs)
        begin = time.process_time()
        trainer.train()
        return time.process_time() - begin


def state_seconds(name: str) -> float:
    """Processor seconds of writing `trainer_state.json`."""
    steps = range(1, LOGS + 1)
    logs = [{"loss": 0.5 / step, "grad_norm": 1.0, "epoch": 0.1, "step": step} for step in steps]
    state = library(name).TrainerState(log_history=logs)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        state.save_to_json(os.path.join(folder, "trainer_state.json"))
        return time.process_time() - begin


def main() -> list[Figure]:
    torch.set_num_threads(1)
    dataset = tiny_dataset(8_000)
    seconds = medians(
        interleaved(ROUNDS, {name: partial(training, name, dataset) for name in LIBRARIES})
    )
    states = medians(
        interleaved(ROUNDS, {name: partial(state_seconds, name) for name in LIBRARIES})
    )
    rows = [
        (f"{name}, {STEPS} steps with a log each", f"{value:.1f} s")
        for name, value in seconds.items()
    ]
    rows += [
        (f"{name}, state with {LOGS} logs", f"{value * 1e3:.0f} ms")
        for name, value in states.items()
    ]
    figures = [
        Figure(
            "20,000 steps with a log each", seconds["lightrainer"] / seconds["transformers"], 0.6
        ),
        Figure(
            "trainer_state.json with 20,000 logs",
            states["lightrainer"] / states["transformers"],
            1.0,
        ),
    ]
    return report("many_logs", rows, {"seconds": seconds, "states": states}, figures)


if __name__ == "__main__":
    main()
