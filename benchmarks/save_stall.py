"""Time that checkpoints of 0.2 to 240 MB add to a training: lightrainer / reference, in one run.

The standstill of a save is the time of `train()` with saves minus that of the same training
without, divided by their number; the end of `train()` is part of both. Two cases: saves a second
apart, and one after every third step of some milliseconds. The second between two saves is slept in
the step before the save, and subtracted as it was measured.
"""

import contextlib
import io
import math
import statistics
import tempfile
import time
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from .common import LIBRARIES, Figure, interleaved, library, quiet_arguments, report

SIZES = (0.2, 3, 24, 70, 240)  # MB of a checkpoint: weights and the two states of AdamW
EVERY = 3  # steps between two saves
PAUSES = {"a second apart": 1.0, "every third step": 0.0}
GOALS = {"a second apart": 0.5, "every third step": 1.0}
SAVES = {"a second apart": 4, "every third step": 20}
ROUNDS = 5


class Layers(nn.Module):
    """Four square layers that take some milliseconds a step, however large they are."""

    def __init__(self, megabytes: float):
        super().__init__()
        self.width = math.isqrt(int(megabytes * 1e6 / 48))
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(self.width, self.width), nn.ReLU()) for _ in range(4))
        )

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the mean of the outputs, for `x` of shape (batch, width)."""
        outputs = self.layers(x)
        return {"loss": outputs.square().mean(), "logits": outputs}


def training(name: str, megabytes: float, case: str, *, saves: bool) -> float:
    """Return the seconds of one `train()`, without those it slept."""
    api, slept = library(name), 0.0

    class Pause(api.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            nonlocal slept
            if PAUSES[case] and (state.global_step + 1) % EVERY == 0:
                begin = time.perf_counter()
                time.sleep(PAUSES[case])
                slept += time.perf_counter() - begin

    torch.manual_seed(0)
    model = Layers(megabytes)
    dataset = [{"x": x} for x in torch.randn(8 * EVERY, model.width)]
    with tempfile.TemporaryDirectory(dir=".") as folder, contextlib.redirect_stdout(io.StringIO()):
        saving = {
            "save_strategy": "steps" if saves else "no",
            "save_steps": EVERY,
            "save_total_limit": 2,
        }
        arguments = quiet_arguments(name, folder, max_steps=EVERY * SAVES[case], **saving)
        inputs: dict[str, Any] = {
            "train_dataset": dataset,
            "data_collator": default_collate,
            "callbacks": [Pause()],
        }
        trainer = api.Trainer(model, arguments, **inputs)
        begin = time.perf_counter()
        trainer.train()
        return time.perf_counter() - begin - slept


def standstills(megabytes: float, case: str) -> dict[str, list[float]]:
    """Return the seconds of standstill for each save, by library, one for each round; the first
    round warms up.
    """
    kinds = {
        (name, saves): partial(training, name, megabytes, case, saves=saves)
        for name in LIBRARIES
        for saves in (True, False)
    }
    measured = interleaved(
        ROUNDS + 1, {f"{name} {saves}": run for (name, saves), run in kinds.items()}
    )
    return {
        name: [
            (with_saves - without) / SAVES[case]
            for with_saves, without in zip(
                measured[f"{name} True"], measured[f"{name} False"], strict=True
            )
        ][1:]
        for name in LIBRARIES
    }


def main(sizes: tuple[float, ...] = SIZES) -> list[Figure]:
    torch.set_num_threads(1)
    rows: list[tuple[str, str]] = []
    results: dict[str, Any] = {}
    figures: list[Figure] = []
    for case in PAUSES:
        for megabytes in sizes:
            rounds = standstills(megabytes, case)
            seconds = {name: statistics.median(values) for name, values in rounds.items()}
            case_name = f"standstill for a checkpoint of {megabytes:g} MB, {case}"
            rows += [
                (f"{name}, {case_name}", f"{value * 1e3:6.1f} ms")
                for name, value in seconds.items()
            ]
            results[f"{megabytes:g} MB, {case}"] = {"seconds": seconds, "rounds": rounds}
            figures.append(
                Figure(case_name, seconds["lightrainer"] / seconds["transformers"], GOALS[case])
            )
    return report("save_stall", rows, results, figures)


if __name__ == "__main__":
    main()
