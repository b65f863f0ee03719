"""The most memory that training steps and a resumption take, of a GPT of 10 million parameters with
AdamW.

Each in a fresh process, against the reference: of the tensors that `train` allocates, which is the
same in each run, and of the whole process, libraries included. How far the process grows in `train`
would tell nothing: that depends on what the imports before it left free.
"""

import contextlib
import io
import itertools
import json
import resource
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import default_collate

from .common import LIBRARIES, Figure, interleaved, library, medians, quiet_arguments, report
from .gpt_steps import Gpt, token_rows

LENGTH, BATCH = 64, 4
ROUNDS = {"tensors": 1, "process": 3}
CASES = {
    "steps": "a training step",
    "accumulated": "a step of 4 accumulated batches",
    "resume": "a resumption",
}


def trainer(name: str, folder: str, **changes: Any) -> Any:
    arguments = quiet_arguments(name, folder, per_device_train_batch_size=BATCH, **changes)
    inputs = {"train_dataset": token_rows(256, LENGTH), "data_collator": default_collate}
    return library(name).Trainer(Gpt(width=320), arguments, **inputs)


def train(name: str, case: str, folder: str, watched: AbstractContextManager[Any]) -> None:
    """Train as the case wants it, and watch the training alone."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    options: dict[str, Any] = {"max_steps": 3}
    if case == "accumulated":
        options["gradient_accumulation_steps"] = 4
    if case == "resume":
        # In a process of its own: the memory that it gave back would be used again.
        command = [sys.executable, "-m", "benchmarks.memory", name, "save", folder]
        subprocess.run(command, check=True, capture_output=True)
    trained = trainer(name, folder, **options)
    with watched:
        trained.train(resume_from_checkpoint=f"{folder}/checkpoint-2" if case == "resume" else None)


def measure(name: str, case: str, what: str) -> float:
    """Megabytes of this process at its largest, or of the tensors that a training allocates."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        if what == "process":
            train(name, case, folder, contextlib.nullcontext())
            return largest_of_this_process() / 2**10
        profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        )
        train(name, case, folder, profile)
        trace = Path(folder, "trace.json")
        profile.export_chrome_trace(str(trace))
        return highest(json.loads(trace.read_text())["traceEvents"]) / 2**20


def largest_of_this_process() -> float:
    """Kilobytes; `getrusage` would count what a parent had before it became this program."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(
        float(line.split()[1])
        for line in status.read_text().splitlines()
        if line.startswith("VmHWM:")
    )


def highest(events: list[dict[str, Any]]) -> int:
    """Return the most bytes that are there at once, of a trace with all that was taken and given
    back.
    """
    moves = sorted(
        (each for each in events if each.get("name") == "[memory]"), key=lambda each: each["ts"]
    )
    return max(itertools.accumulate(each["args"]["Bytes"] for each in moves))


def save(name: str, folder: str) -> None:
    torch.set_num_threads(1)
    trainer(name, folder, max_steps=2, save_strategy="steps", save_steps=2).train()


def in_process(name: str, case: str, what: str) -> float:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", name, case, what]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def main() -> list[Figure]:
    rows: list[tuple[str, str]] = []
    results: dict[str, dict[str, float]] = {}
    figures = []
    for case, of_case in CASES.items():
        for quantity, rounds in ROUNDS.items():
            measured = interleaved(
                rounds, {name: partial(in_process, name, case, quantity) for name in LIBRARIES}
            )
            peak = results[f"{case}, {quantity}"] = medians(measured)
            rows += [
                (f"{name}, {of_case}, {quantity}", f"{value:6.1f} MB")
                for name, value in peak.items()
            ]
            ratio = peak["lightrainer"] / peak["transformers"]
            figures.append(Figure(f"peak of memory, {of_case}, {quantity}", ratio, 1.0))
    return report("memory", rows, {"megabytes": results}, figures)


if __name__ == "__main__":
    if sys.argv[2:3] == ["save"]:
        save(sys.argv[1], sys.argv[3])
    elif len(sys.argv) > 1:
        print(json.dumps(measure(*sys.argv[1:])))
    else:
        main()
