"""Stage `checkpoints`: how long training stands still for one, and whether it goes on bit for
bit.
"""

import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from ..common import library
from .cases import Outcome, Setting
from .models import SMALL, TINY, Shape
from .training import Trained, Training

EVERY = 10
STEPS = 31
PRECISIONS = ("fp32", "bf16", "fp16")


def cases(setting: Setting) -> dict[str, Callable[[], Outcome]]:
    """Return the standstill for each library, and a resumption for each precision."""
    shape, small = (TINY, TINY) if setting.small else (Shape(), SMALL)
    saved = {
        name: Training(shape, STEPS, 2, "bf16", extra=_saving(EVERY))
        for name in setting.libraries()
    }
    cases_by_name = {
        f"standstill, {name}": functools.partial(standstill, name, each, setting)
        for name, each in saved.items()
    }
    for precision in PRECISIONS:
        training = Training(
            small, 8, 2, precision, clip=1.0, extra={**_saving(4), "full_determinism": True}
        )
        cases_by_name[f"resumption, {precision}"] = functools.partial(resumption, training, setting)
    return cases_by_name


def _saving(every: int) -> dict[str, Any]:
    return {"save_strategy": "steps", "save_steps": every}


def standstill(name: str, training: Training, setting: Setting) -> Outcome:
    """Measure the time between the end of a saved step and the beginning of the next, beyond
    that of other steps.
    """
    ends: dict[int, float] = {}
    pauses: dict[int, float] = {}

    class Clock(library(name).TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step in ends:
                pauses[state.global_step] = now(setting) - ends[state.global_step]

        def on_step_end(self, args, state, control, **kwargs):
            ends[state.global_step] = now(setting)

    with training.trainer(name, setting, [Clock()]) as trainer:
        trainer.train()
        end = now(setting) - ends[STEPS]
    saved = [seconds for step, seconds in pauses.items() if step % EVERY == 0]
    others = statistics.median(seconds for step, seconds in pauses.items() if step % EVERY)
    figures = {"milliseconds a checkpoint": (statistics.median(saved) - others) * 1e3}
    return {"passed": None, "figures": {**figures, "milliseconds at the end": end * 1e3}}


def now(setting: Setting) -> float:
    """Return the time when the device has done its work."""
    if not setting.small:
        torch.cuda.synchronize()
    return time.perf_counter()


def resumption(training: Training, setting: Setting) -> Outcome:
    """Train through; train again from the checkpoint in the middle; the weights have to be the
    same.
    """
    if setting.small and training.precision == "fp16":
        return {"skipped": "fp16 is for GPUs"}
    api = library("lightrainer")
    with tempfile.TemporaryDirectory() as folder:

        def train(resumed: str | None) -> Trained:
            arguments = training.arguments("lightrainer", setting, folder)
            trainer = api.Trainer(training.model(), arguments, train_dataset=training.rows())
            trainer.train(resume_from_checkpoint=resumed)
            return Trained.of(
                [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
                trainer.model,
            )

        through = train(None)
        resumed = train(f"{folder}/checkpoint-4")
    distance = resumed.distance(through)
    return {"passed": distance == 0, "figures": {"difference": distance}}
