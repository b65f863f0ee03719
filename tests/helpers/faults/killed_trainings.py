"""The trainings that are killed, written as scripts that may be killed at any time."""

import errno
import os
import pickle
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from helpers.checkpoints import resumed_trainings
from helpers.faults.moments import Counter, Moment, writes
from helpers.trainer.tiny_trainings import tiny
from lightrainer import Trainer, get_last_checkpoint

ANYTIME = ("change", "pass", "byte", "second")
EVERY_STEP = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 3}
WORKERS = {"dataloader_num_workers": 2, "dataloader_multiprocessing_context": "fork"}
BEST = {"metric_for_best_model": "loss", "greater_is_better": True, "load_best_model_at_end": True}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 1}
KEPT = {**EVERY_STEP, **EVALUATED, **BEST}
ASKED = {"enable_jit_checkpoint": True}
OF_TWO = {**EVERY_STEP, "per_device_train_batch_size": 1}
IN_PARTS = {
    **OF_TWO,
    "fsdp": "full_shard",
    "fsdp_config": {"version": 2, "state_dict_type": "SHARDED_STATE_DICT"},
}


@dataclass(frozen=True)
class Case:
    """A training of 12 steps, or 6 in two processes, over two epochs, in windows of two batches,
    with dropout.
    """

    reads: str = "samples"
    """The data, by its name in `resumed_trainings.KINDS`: dataset and collator draw from all generators."""
    arguments: dict[str, Any] = field(default_factory=lambda: EVERY_STEP)
    moments: tuple[str, ...] = ANYTIME
    in_background: bool = False
    """Whether at most one checkpoint waits for the thread; else all are written while training
    waits.
    """
    processes: int = 1
    part: float = 0.33
    """How far a training may get, at most, before it is killed once more."""
    number: int = signal.SIGKILL
    """Or SIGTERM, upon which a training saves and ends."""
    full: float = 0.0
    """How likely a write below the output folder is to fail in one process of a training that is
    to be killed.
    """

    @property
    def limit(self) -> int | None:
        """How many checkpoints may be left; a kill between the last save and its rotation leaves
        one more.
        """
        limit = self.arguments.get("save_total_limit")
        return (
            None
            if limit is None
            else limit + 1 + ("metric_for_best_model" in self.arguments and limit == 1)
        )


CASES = {
    "samples": Case(),
    "samples, in the background": Case(in_background=True),
    "samples, rarely saved": Case(arguments={"save_strategy": "steps", "save_steps": 5}, part=0.8),
    "samples, killed around the end of an epoch": Case(
        arguments={"save_strategy": "epoch", "save_total_limit": 1},
        moments=("change", "byte", "pass"),
        part=0.7,
    ),
    "samples with workers": Case(arguments={**EVERY_STEP, **WORKERS}, moments=(*ANYTIME, "sample")),
    "the best is kept": Case(arguments={**KEPT, "save_total_limit": 1}),
    "the best is kept, in the background": Case(
        arguments={**KEPT, "save_total_limit": 2}, in_background=True
    ),
    "only the best is saved": Case(
        arguments={**EVALUATED, **BEST, "save_strategy": "best", "save_total_limit": 2}
    ),
    "by length": Case("a table by length", EVERY_STEP),
    "by length, with workers that stay": Case(
        "a table by length",
        {**EVERY_STEP, **WORKERS, "dataloader_persistent_workers": True},
        in_background=True,
    ),
    "a stream": Case("a stream", in_background=True),
    "a stream with workers": Case(
        "a stream", {**EVERY_STEP, **WORKERS}, ("sample", "second", "change")
    ),
    "a stream with a state": Case("a stream with a state", in_background=True),
    "a stream with a state and workers": Case("a stream with a state", {**EVERY_STEP, **WORKERS}),
    "a shuffled stream of rows": Case("a shuffled stream of rows", in_background=True),
    "a StatefulDataLoader": Case("a StatefulDataLoader"),
    "asked to end": Case(
        arguments={**EVERY_STEP, **ASKED}, moments=("pass", "change"), number=signal.SIGTERM
    ),
    "asked to end, otherwise never saved": Case(
        "samples",
        {"save_strategy": "no", **ASKED, **WORKERS},
        ("pass",),
        in_background=True,
        number=signal.SIGTERM,
    ),
    "two processes": Case("samples", OF_TWO, ("change",), processes=2),
    "two processes, in the background": Case("samples", OF_TWO, processes=2, in_background=True),
    "two processes, in parts, in the background": Case(
        "samples", IN_PARTS, processes=2, in_background=True
    ),
    "two processes, by length, with workers": Case(
        "a table by length", {**OF_TWO, **WORKERS}, processes=2
    ),
    "two processes, a stream with a state": Case(
        "a stream with a state", {**OF_TWO, "max_steps": 6}, processes=2
    ),
    "two processes, one asked to end": Case(
        "samples", {**OF_TWO, **ASKED}, ("pass",), processes=2, number=signal.SIGTERM
    ),
}


def refuse(folder: Path, when: Callable[[], bool], rank: int = 0) -> None:
    """Let some of the writes below a folder fail in one process, as if the disk were full."""
    if rank != int(os.environ.get("RANK", "0")):
        return
    inner = torch.save

    def write(path: Any) -> None:
        if str(path).startswith(f"{folder}{os.sep}") and when():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event == "os.mkdir" or (event == "open" and writes(args)):
            write(args[0])

    def save(obj: Any, path: Any, **options: Any) -> None:
        write(path)
        inner(obj, path, **options)

    torch.save = save
    sys.addaudithook(watch)


def train(case: Case, folder: Path, moment: Moment | None = None, **changes: Any) -> None:
    """Train, resuming if there is a checkpoint; write down how it ended and how often each thing
    happened.
    """
    rank, output = int(os.environ.get("RANK", "0")), folder / "out"
    kind = resumed_trainings.KINDS[case.reads]
    Trainer.background_checkpoints = 0 if case.in_background else None
    if case.full and moment is not None:
        draw = random.Random(str(moment))
        starved = draw.randrange(case.processes)
        refuse(output, lambda: draw.random() < case.full, starved)
    begin = get_last_checkpoint(output) if output.is_dir() else None
    with (folder / "begins.txt").open("a") as file:
        file.write(f"{Path(begin).name if begin else 'nothing'}\n" if rank == 0 else "")
    counter = Counter(moment, output, rank)
    counted = {"model": counter.model(tiny()), "data_collator": counter.collator(kind.collator)}
    counter.start()
    output = Path(changes.pop("output_dir", output))
    run = resumed_trainings.train(
        output, kind, resume=True if begin else None, **{**counted, **case.arguments, **changes}
    )
    (folder / f"end{rank}.pickle").write_bytes(pickle.dumps({**run.end, "seen": counter.seen}))


def end(case: Case, folder: Path) -> list[dict[str, Any]]:
    """What each process wrote down, all of it made of plain values."""
    return [
        pickle.loads((folder / f"end{rank}.pickle").read_bytes()) for rank in range(case.processes)
    ]
