"""Stage `throughput`: tokens a second, peak memory and host synchronisations of a step."""

import functools
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from ..common import library
from .cases import Outcome, Setting
from .models import TINY, Shape
from .training import Training

GOAL = 1.02
"""Of the bare loop's time for a step."""

VARIANTS = {
    "bf16": {"precision": "bf16"},
    "bf16, compile": {"precision": "bf16", "compiled": True},
    "bf16, FSDP on one device": {"precision": "bf16", "sharded": True},
    "fp32": {},
}


def cases(setting: Setting) -> dict[str, Callable[[], Outcome]]:
    """Return a case for each variant and side, so that peaks of memory are those of one side."""
    shape, steps, batch = (TINY, 6, 2) if setting.small else (Shape(), 40, 8)
    extra = {"logging_steps": 1_000_000}
    return {
        f"{variant}, {side}": functools.partial(
            measure, side, Training(shape, steps, batch, extra=extra, **options), setting
        )
        for variant, options in VARIANTS.items()
        for side in ("bare loop", *setting.libraries())
    }


def measure(side: str, training: Training, setting: Setting) -> Outcome:
    """Train; the first half of the steps warms up, the second half is measured."""
    if training.sharded:
        os.environ.update(
            {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        )
        os.environ.setdefault("MASTER_PORT", "29571")
    meter = Meter(training, setting)
    if side == "bare loop":
        if training.sharded:
            torch.distributed.init_process_group("gloo" if setting.small else "nccl")
        training.bare(setting, meter.after_step)
    else:
        with training.trainer(side, setting, [meter.callback(side)]) as trainer:
            trainer.train()
    return {"passed": None, "figures": meter.figures}


class Meter:
    """Time, memory and host synchronisations of the second half of a training.

    Args:
        training: that is measured.
        setting: where.
    """

    def __init__(self, training: Training, setting: Setting):
        self.training, self.setting = training, setting
        self.half = training.steps // 2
        self.figures: dict[str, float] = {}
        self._begin = 0.0
        self._warnings = warnings.catch_warnings(record=True)

    def callback(self, name: str) -> Any:
        """Return a `TrainerCallback` of that library, which calls `after_step`."""
        meter = self

        class Measures(library(name).TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                meter.after_step(state.global_step)

        return Measures()

    def after_step(self, number: int) -> None:
        """Begin after the first half, end after the last step."""
        if number == self.half:
            self._start()
        elif number == self.training.steps:
            self._stop()

    def _start(self) -> None:
        if not self.setting.small:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._seen = self._warnings.__enter__()
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
        self._begin = time.perf_counter()

    def _stop(self) -> None:
        steps = self.training.steps - self.half
        if not self.setting.small:
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize()
            self._warnings.__exit__(None, None, None)
            waited = sum("synchroniz" in str(each.message) for each in self._seen or ())
            self.figures["host synchronisations a step"] = waited / steps
            self.figures["peak memory, GiB"] = torch.cuda.max_memory_allocated() / 2**30
        seconds = (time.perf_counter() - self._begin) / steps
        tokens = self.training.batch * self.training.accumulation * self.training.shape.length
        self.figures |= {"tokens a second": tokens / seconds, "milliseconds a step": seconds * 1e3}
