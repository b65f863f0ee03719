"""Collectives of a start, a step, an evaluation and a save for 2 to 1,024 processes, and their time
for 2, 4 and 8.

Counted in one process: a process group that stands for the others, all of which send what this one
sends. So each world is as cheap as a process. Timed over gloo, in as many real processes, against
the reference in the same run.
"""

import collections
import contextlib
import io
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.utils.data import Dataset, default_collate

from .common import (
    LIBRARIES,
    Figure,
    TinyModel,
    interleaved,
    library,
    quiet_arguments,
    report,
    tiny_dataset,
)

COUNTED = (2, 8, 64, 1024)
TIMED = (2, 4, 8)
ROUNDS = 3
# the last and the only other evaluation and save come after these steps
STEPS, EVALUATED, SAVED = 60, 30, 45
SECONDS = 600
PAGE = Path(__file__).resolve().parents[1] / "docs" / "user" / "scaling.md"
BEGIN, END = (
    "<!-- collectives: python -m benchmarks many_processes -->\n",
    "<!-- end of collectives -->\n",
)
PHASES = {
    "start": "up to the first step",
    "step": "a step",
    "evaluation": "an evaluation of two batches",
    "save": "a save",
}

ITEMS = tiny_dataset(64)

Counts = dict[str, dict[str, int]]
"""Phase -> calls and bytes of its collectives, and those of `signals`."""


class Rows(Dataset):
    """So many rows, of which a few are in memory."""

    def __init__(self, count: int):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return ITEMS[index % len(ITEMS)]


class Mirror(dist.ProcessGroup):
    """A process group of any size in one process: each other rank is taken to send what this one
    does.

    Args:
        rank: of this process.
        size: of the group.
        counter: what it counts in: calls, bytes.
    """

    def __init__(self, rank: int, size: int, counter: collections.Counter):
        super().__init__(rank, size)
        self.counter = counter

    def getBackendName(self) -> str:  # noqa: N802 - torch asks for it
        """Return the name under which the group is registered."""
        return "mirror"

    def _done(self, result: Any, sent: list[torch.Tensor]) -> Any:
        self.counter["calls"] += 1
        self.counter["bytes"] += sum(tensor.nbytes for tensor in sent)
        future: Future = Future()
        future.set_result(result)
        return torch._C._distributed_c10d._create_work_from_future(future)

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> Any:
        """Multiply by the size where ranks are summed."""
        if options is None or options.reduceOp == dist.ReduceOp.SUM:
            for tensor in tensors:
                tensor.mul_(self.size())
        return self._done(tensors, tensors)

    def broadcast(self, tensors: list[torch.Tensor], options: Any = None) -> Any:
        """Leave the tensors as they are."""
        return self._done(tensors, tensors)

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any = None
    ) -> Any:
        """Copy the input for each rank."""
        for output, sent in zip(outputs, inputs, strict=True):
            for place in output:
                place.copy_(sent)
        return self._done(outputs, inputs)

    gather = allgather

    def _allgather_base(self, output: torch.Tensor, sent: torch.Tensor, options: Any = None) -> Any:
        output.view(self.size(), -1).copy_(sent.reshape(1, -1))
        return self._done([output], [sent])

    def barrier(self, opts: Any = None) -> Any:
        """Count."""
        return self._done(None, [])


@contextlib.contextmanager
def mirrored(size: int, counters: dict[str, collections.Counter]) -> Any:
    """Put a `Mirror` in place of the process group; groups that are made later count as
    `signals`.
    """

    def create(store: Any, rank: int, size: int, timeout: Any) -> Mirror:
        return Mirror(rank, size, counters["signals" if dist.is_initialized() else "all"])

    dist.Backend.register_backend("mirror", create, devices=["cpu"])
    os.environ.update(
        {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": "1"}
    )
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
    dist.init_process_group("mirror", rank=0, world_size=size, store=dist.HashStore())
    new_group = dist.new_group
    dist.new_group = lambda ranks=None, timeout=None, backend=None, **options: new_group(
        ranks, backend="mirror"
    )
    dist.destroy_process_group = lambda *arguments: None
    yield


def training(name: str, size: int, folder: str, marks: list[tuple[str, Any]], look: Any) -> None:
    """Train; append what `look` returns when a phase is over."""
    api = library(name)

    class Marks(api.TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            marks.append(("start", look()))

        def on_step_end(self, args, state, control, **kwargs):
            marks.append(("step", look()))

        def on_evaluate(self, args, state, control, **kwargs):
            marks.append(("evaluation", look()))

        def on_save(self, args, state, control, **kwargs):
            marks.append(("save", look()))

    with contextlib.redirect_stdout(io.StringIO()):
        arguments = quiet_arguments(
            name,
            folder,
            max_steps=STEPS,
            eval_strategy="steps",
            eval_steps=EVALUATED,
            save_strategy="steps",
            save_steps=SAVED,
            per_device_eval_batch_size=8,
            ddp_find_unused_parameters=False,
        )
        rows = {"train_dataset": Rows(8 * size * STEPS), "eval_dataset": Rows(16 * size)}
        api.Trainer(
            TinyModel(), arguments, **rows, data_collator=default_collate, callbacks=[Marks()]
        ).train()


def count(name: str, size: int) -> Counts:
    """Return the collectives of each phase, those of a step after the first one."""
    counters = {"all": collections.Counter(), "signals": collections.Counter()}
    marks: list[tuple[str, Any]] = []
    with mirrored(size, counters), tempfile.TemporaryDirectory() as folder:
        training(
            name,
            size,
            folder,
            marks,
            lambda: {of: dict(counter) for of, counter in counters.items()},
        )
    counts: Counts = {}
    before = {"all": {}, "signals": {}}
    for phase, now in marks:
        counts_of_phase = {
            kind: now["all"].get(kind, 0) - before["all"].get(kind, 0)
            for kind in ("calls", "bytes")
        }
        counts_of_phase["signals"] = now["signals"].get("calls", 0) - before["signals"].get(
            "calls", 0
        )
        counts[phase] = (
            counts_of_phase
            if phase != "step"
            or "step" not in counts
            or counts_of_phase["calls"] < counts[phase]["calls"]
            else counts[phase]
        )
        before = now
    return counts


def timed(name: str, folder: str) -> dict[str, float]:
    """Return the seconds of each phase in this process, over gloo; the median of the steps."""
    marks: list[tuple[str, float]] = [("", time.perf_counter())]
    training(name, dist.get_world_size(), folder, marks, time.perf_counter)
    taken: dict[str, list[float]] = collections.defaultdict(list)
    for (_, before), (phase, now) in itertools.pairwise(marks):
        taken[phase].append(now - before)
    return {phase: statistics.median(each) for phase, each in taken.items()}


def counted(name: str, size: int) -> Counts:
    """Count in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.many_processes", "count", name, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise RuntimeError(
            f"{name} with {size} processes ended with {done.returncode}:\n{done.stderr[-3000:]}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def times(size: int) -> dict[str, dict[str, float]]:
    """Return the median seconds of each phase, by library, in so many processes."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc_per_node={size}",
        "--rdzv-backend=c10d",
    ]
    command += ["--rdzv-endpoint=localhost:0", "-m", "benchmarks.many_processes", "time"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, folder], env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    if done.returncode:
        raise RuntimeError(f"{size} processes ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def table(
    counts: dict[str, dict[int, Counts]], seconds: dict[int, dict[str, dict[str, float]]]
) -> str:
    """Return the tables of the page."""
    lines = ["| | processes | transformers | here |", "|---|---|---|---|"]
    for phase, label in PHASES.items():
        for cells, sizes in _grouped(counts, phase).items():
            lines.append(f"| {label} | {', '.join(f'{size:,}' for size in sizes)} | {cells} |")
    lines += ["", "| | processes | time here, of transformers' |", "|---|---|---|"]
    for phase, label in PHASES.items():
        for size, times in seconds.items():
            lines.append(
                f"| {label} | {size} | "
                f"{times['lightrainer'][phase] / times['transformers'][phase]:.2f} |"
            )
    return "\n".join(lines) + "\n"


def _grouped(counts: dict[str, dict[int, Counts]], phase: str) -> dict[str, list[int]]:
    """Return the sizes of world that have the same numbers, by these numbers."""
    groups: dict[str, list[int]] = collections.defaultdict(list)
    for size in COUNTED:
        sides = (counts[name][size][phase] for name in LIBRARIES)
        groups[" | ".join(f"{each['calls']} ({each['bytes']:,} bytes)" for each in sides)].append(
            size
        )
    return groups


def main() -> list[Figure]:
    counts = {name: {size: counted(name, size) for size in COUNTED} for name in LIBRARIES}
    seconds = {size: times(size) for size in TIMED}
    text = table(counts, seconds)
    print(text)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + text + END + rest.partition(END)[2], encoding="utf-8")
    theirs, ours = (counts[name] for name in LIBRARIES)
    largest, smallest = COUNTED[-1], COUNTED[0]
    more = max(ours[largest][phase]["calls"] - ours[smallest][phase]["calls"] for phase in PHASES)
    step = ours[largest]["step"]["calls"] / theirs[largest]["step"]["calls"]
    figures = [
        Figure("collectives of a step of 1,024 processes, against the reference", step, 1.0),
        Figure("collectives that 1,024 processes need more than 2", more, 0),
    ]
    return report("many_processes", [], {"counts": counts, "seconds": seconds}, figures)


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {phase: statistics.median(each[phase] for each in rounds) for phase in PHASES}


def _main(words: list[str]) -> None:
    torch.set_num_threads(1)
    if words[:1] == ["count"]:
        print(json.dumps(count(words[1], int(words[2]))))
    elif words[:1] == ["time"]:
        dist.init_process_group("gloo")
        candidates = {
            name: lambda name=name: timed(name, os.path.join(words[1], name)) for name in LIBRARIES
        }
        for candidate in candidates.values():  # imports, and all that is done once in a process
            candidate()
        measured = interleaved(ROUNDS, candidates)
        if dist.get_rank() == 0:
            print(json.dumps({name: _medians(values) for name, values in measured.items()}))
        dist.barrier()
        dist.destroy_process_group()
    else:
        main()


if __name__ == "__main__":
    _main(sys.argv[1:])
