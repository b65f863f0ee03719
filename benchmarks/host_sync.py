"""How often the host asks for a number that is on the device, between two logs.

Each such question makes the host wait until the device has done all its work. The count may not grow with the number of
steps: it is taken for a training of N and one of 2N steps, of which only the end is logged.
"""

import contextlib
import io
import tempfile
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import default_collate

from .common import LIBRARIES, Figure, TinyModel, library, quiet_arguments, report, tiny_dataset

STEPS = 50
MEASURED = "with throughput, memory, gradient norms, EMA and report"


class CountQuestions(TorchDispatchMode):
    """Counts `aten::_local_scalar_dense`, which `.item()`, `float()`, `bool()` and `if` on a tensor come down to."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def measuring(api: Any) -> list[Any]:
    """Return the callbacks that measure, and the one that reports."""
    names = ("ThroughputCallback", "MemoryCallback", "GradientNormCallback", "EMACallback", "RunReportCallback")
    return [getattr(api, name)() for name in names]


def questions(name: str, steps: int, measured: bool, **changes) -> int:
    """Return the number of questions in a training of that many steps, within one epoch."""
    api = library(name)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        arguments = quiet_arguments(name, folder, max_steps=steps, **changes)
        trainer = api.Trainer(
            TinyModel(),
            arguments,
            train_dataset=tiny_dataset(32 * STEPS),
            data_collator=default_collate,
            callbacks=measuring(api) if measured else [],
        )
        with CountQuestions() as counter:
            trainer.train()
    return counter.count


def main() -> list[Figure]:
    torch.set_num_threads(1)
    situations = {
        "plain": {},
        "two micro-batches a step": {"gradient_accumulation_steps": 2},
        "no clipping": {"max_grad_norm": 0.0},
        "NaN shown": {"logging_nan_inf_filter": False},
        MEASURED: {},
    }
    rows, results = [], {}
    for situation, changes in situations.items():
        for name in LIBRARIES if situation != MEASURED else ("lightrainer",):
            short, long = (questions(name, steps, situation == MEASURED, **changes) for steps in (STEPS, 2 * STEPS))
            per_step = (long - short) / STEPS
            rows.append(
                (f"{situation}, {name}", f"{short:4} in {STEPS} steps, {long:4} in {2 * STEPS}: {per_step:g} a step")
            )
            results.setdefault(situation, {})[name] = {"short": short, "long": long, "per_step": per_step}
    asked = max(by_name["lightrainer"]["per_step"] for by_name in results.values())
    figures = [Figure("host synchronisations in a step between two logs", asked, 0)]
    return report("host_sync", rows, {"steps": STEPS, "questions": results}, figures)


if __name__ == "__main__":
    main()
