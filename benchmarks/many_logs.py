"""A run of 20,000 steps with a log each: lightrainer / reference; and the state of a run with 100,000 logs.

The runs are timed by the processor, in turn. The text of `trainer_state.json` is made for histories that grow by ten
entries between two saves, as the first 1,000 and the last 100,000 entries are there.
"""

import contextlib
import os
import statistics
import tempfile
import time
from functools import partial
from typing import Any

import torch
from torch.utils.data import default_collate

from .common import LIBRARIES, Figure, TinyModel, interleaved, library, medians, quiet_arguments, report, tiny_dataset

STEPS, ROUNDS, SAVES = 20_000, 3, 20


def training(name: str, dataset: list[dict[str, torch.Tensor]]) -> float:
    """Processor seconds of one run."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        arguments = quiet_arguments(name, folder, max_steps=STEPS, logging_steps=1)
        made: dict[str, Any] = {"train_dataset": dataset, "data_collator": default_collate}
        trainer = library(name).Trainer(TinyModel(), arguments, **made)
        begin = time.process_time()
        trainer.train()
        return time.process_time() - begin


def state_seconds(entries: int) -> float:
    """Processor seconds that the state of a run takes for a save, with so many logs."""

    def logs(begin: int, count: int) -> list[dict[str, Any]]:
        steps = range(begin, begin + count)
        return [{"loss": 0.5 / step, "grad_norm": 1.0, "epoch": 0.1, "step": step} for step in steps]

    state = library("lightrainer").TrainerState(log_history=logs(1, entries))
    state.to_json()
    times = []
    for _ in range(SAVES):
        state.log_history += logs(len(state.log_history) + 1, 10)
        begin = time.process_time()
        state.to_json()
        times.append(time.process_time() - begin)
    return statistics.median(times)


def main() -> list[Figure]:
    torch.set_num_threads(1)
    dataset = tiny_dataset(8_000)
    seconds = medians(interleaved(ROUNDS, {name: partial(training, name, dataset) for name in LIBRARIES}))
    few, many = state_seconds(1_000), state_seconds(100_000)
    rows = [(f"{name}, {STEPS} steps with a log each", f"{value:.1f} s") for name, value in seconds.items()]
    rows += [("state with 1,000 logs", f"{few * 1e6:.0f} us"), ("state with 100,000 logs", f"{many * 1e6:.0f} us")]
    figures = [
        Figure("20,000 steps with a log each", seconds["lightrainer"] / seconds["transformers"], 0.6),
        Figure("trainer_state.json with 100,000 logs against 1,000", many / few, 1.5),
    ]
    return report("many_logs", rows, {"seconds": seconds, "state": {"few": few, "many": many}}, figures)


if __name__ == "__main__":
    main()
