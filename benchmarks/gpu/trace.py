"""Stage `trace`: what takes the time of a step, as a table, and a trace for Perfetto."""

import functools
from collections.abc import Callable
from pathlib import Path

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, schedule

from ..common import library
from .cases import Outcome, Setting
from .models import TINY, Shape
from .training import Training

FOLDER = Path("build") / "gpu"
ROWS = 12


def cases(setting: Setting) -> dict[str, Callable[[], Outcome]]:
    """Return the one case."""
    shape, batch = (TINY, 2) if setting.small else (Shape(), 8)
    training = Training(shape, 12, batch, "bf16", clip=1.0, extra={"logging_steps": 1_000_000})
    return {"bf16": functools.partial(record, training, setting)}


def record(training: Training, setting: Setting) -> Outcome:
    """Trace four steps after eight that warm up."""
    activities = (
        [ProfilerActivity.CPU] if setting.small else [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    )
    with profile(activities=activities, schedule=schedule(wait=6, warmup=2, active=4)) as profiler:

        class Steps(library("lightrainer").TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                profiler.step()

        with training.trainer("lightrainer", setting, [Steps()]) as trainer:
            trainer.train()
    FOLDER.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(FOLDER / f"trace-{setting.device}.json.gz"))
    rows = list(profiler.key_averages())
    key = "self_cpu_time_total"
    if not setting.small:
        # The time of a kernel is that of the operation that started it, too, and a step spans both.
        key = "self_device_time_total"
        rows = [
            row for row in rows if row.device_type != DeviceType.CPU and not row.is_user_annotation
        ]
    rows.sort(key=lambda row: getattr(row, key), reverse=True)
    total = sum(getattr(row, key) for row in rows)
    figures = {f"% {row.key[:60]}": 100 * getattr(row, key) / total for row in rows[:ROWS]}
    return {"passed": None, "figures": {"milliseconds a step": total / 4e3, **figures}}
