"""50,000 steps with `logging_steps=1`: what grows, and whether the last steps take as long as the
first.

Nothing may grow but the list of logs. The steps are timed by the processor, a thousand at a time,
and so is some work that is always the same: within a minute the machine itself becomes slower or
quicker by more than what is looked for.
"""

import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import time

import psutil
import torch
from torch.utils.data import default_collate

from .common import Figure, TinyModel, library, quiet_arguments, report, tiny_dataset

STEPS, WINDOW, WARM = 50_000, 1_000, 5_000


def size_of(logs: list) -> int:
    """Return the bytes of the logs, keys aside, which all of them share."""
    return sys.getsizeof(logs) + sum(
        sys.getsizeof(log) + sum(map(sys.getsizeof, log.values())) for log in logs
    )


def fixed_work() -> float:
    """Return the median of the seconds that a forward and a backward pass take."""
    model, batch = TinyModel(), default_collate(tiny_dataset(8))
    times = [time.process_time()]
    for _ in range(WINDOW):
        model(**batch)["loss"].backward()
        times.append(time.process_time())
    return statistics.median(after - before for before, after in itertools.pairwise(times))


def main() -> list[Figure]:
    torch.set_num_threads(1)
    work: dict[int, float] = {}
    api, process = library("lightrainer"), psutil.Process()
    times: list[float] = []
    results: dict[int, dict[str, int]] = {}

    class Watch(api.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            times.append(time.process_time())
            if state.global_step in (WARM - 1, STEPS - WINDOW - 1):
                work[state.global_step] = fixed_work()
            if state.global_step in (WARM, STEPS):
                results[state.global_step] = {
                    "bytes": process.memory_info().rss,
                    "files": process.num_fds(),
                    "threads": process.num_threads(),
                    "logs": (
                        size_of(state.log_history)
                        + sys.getsizeof(times)
                        + sum(map(sys.getsizeof, times))
                    ),
                }

    arguments = {"max_steps": STEPS, "logging_steps": 1, "per_device_train_batch_size": 8}
    with (
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        inputs = {
            "train_dataset": tiny_dataset(8_000),
            "data_collator": default_collate,
            "callbacks": [Watch()],
        }
        api.Trainer(
            TinyModel(), quiet_arguments("lightrainer", folder, **arguments), **inputs
        ).train()
    first, last = window(times, WARM), window(times, STEPS - WINDOW)
    machine = work[STEPS - WINDOW - 1] / work[WARM - 1]
    grown = {name: results[STEPS][name] - results[WARM][name] for name in results[STEPS]}
    rows = [
        ("a step early on", f"{first * 1e6:.1f} us"),
        ("one of the last steps", f"{last * 1e6:.1f} us"),
        ("time of the same work then, against early on", f"{machine:.2f}"),
        (
            "growth of memory",
            (
                f"{grown['bytes'] / 2**20:.1f} MB, of which the logs, and these times, are "
                f"{grown['logs'] / 2**20:.1f} MB"
            ),
        ),
        ("more open files, threads", f"{grown['files']}, {grown['threads']}"),
    ]
    figures = [
        Figure(
            "the last thousand of 50,000 steps, against early ones", last / first / machine, 1.02
        ),
        Figure(
            "growth of memory beyond the logs, MB", (grown["bytes"] - grown["logs"]) / 2**20, 4.0
        ),
        Figure("more open files after 50,000 steps", grown["files"], 0),
        Figure("more threads after 50,000 steps", grown["threads"], 0),
    ]
    return report(
        "long_run",
        rows,
        {"seconds": {"first": first, "last": last}, "work": work, "growth": grown},
        figures,
    )


def window(times: list[float], begin: int) -> float:
    """Return the median of the seconds that a step took, over a thousand steps."""
    return statistics.median(
        times[step + 1] - times[step] for step in range(begin - 1, begin + WINDOW - 1)
    )


if __name__ == "__main__":
    main()
