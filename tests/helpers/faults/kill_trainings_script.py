"""Kills trainings repeatedly until they finish, and compares the results with uninterrupted runs.

kill_trainings_script.py FOLDER [--processes 1] [--kills 3] [--seed 0] [--only NAME]

Prints one JSON object, with an entry for each case; the output of the trainings stays in the
folder.
"""

import argparse
import itertools
import json
import os
import random
import signal
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from helpers.checkpoints.resumed_trainings import KINDS
from helpers.faults.killed_trainings import CASES, Case, end, train
from helpers.faults.moments import Moment, drawn
from helpers.processes.forking import Ended, forked
from lightrainer import Trainer
from lightrainer.lightning_modules import checkpoints


def uninterrupted(case: Case, folder: Path) -> list[dict[str, float]]:
    """How many of each event the uninterrupted training has, by process."""
    folder.mkdir(parents=True)
    ended = forked(partial(train, case, folder), case.processes, log=folder / "log.txt")
    if any(ended.codes):
        sys.exit(f"the uninterrupted training failed: {ended}")
    sizes = [path.stat().st_size for path in (folder / "out").rglob("*") if path.is_file()] or [1]
    # A moment is drawn from a part of what there is, but in any byte of a file it can end.
    return [
        {**of["seen"], "byte": max(sizes) / case.part, "second": ended.seconds}
        for of in end(case, folder)
    ]


def killed_often(
    case: Case, folder: Path, seen: list[dict[str, float]], draw: random.Random, kills: int
) -> Iterator[dict[str, Any]]:
    """Each of `kills` kills, and nothing once a training has finished despite them."""
    kinds = draw.sample(case.moments, len(case.moments))
    for attempt, kind in zip(range(kills), itertools.cycle(kinds), strict=False):
        moment = drawn(kind, draw, seen, case.part, case.number)
        ended = run_until(case, folder, moment, attempt)
        if not any(ended.codes):
            return
        yield {
            "moment": str(moment),
            "codes": ended.codes,
            "hidden": any(
                path.name.startswith(".checkpoint-") for path in (folder / "out").iterdir()
            ),
            "failed": "" if was_meant(ended, moment) else ended.said[-6000:],
            "complete": len(found(folder)),
            "damaged": [str(path) for path in found(folder) if checkpoints.problems(path)],
        }
    ended = forked(partial(train, case, folder), case.processes, log=folder / "log.txt")
    if any(ended.codes):
        yield {
            "moment": "none",
            "codes": ended.codes,
            "failed": ended.said[-6000:],
            "hidden": False,
            "complete": 0,
        }


def found(folder: Path) -> list[Path]:
    return checkpoints.list_checkpoints(folder / "out") if (folder / "out").is_dir() else []


def run_until(case: Case, folder: Path, moment: Moment, attempt: int) -> Ended:
    (folder / "out").mkdir(exist_ok=True)
    when = {"killed_after": moment.from_outside, "victims": moment.ranks}
    return forked(
        partial(train, case, folder, moment),
        case.processes,
        log=folder / f"log{attempt}.txt",
        **when,
    )


def was_meant(ended: Ended, moment: Moment) -> bool:
    """Whether it was the signal that ended it; a worker's death is told by an error."""
    codes = [ended.codes[rank] for rank in moment.ranks]
    expected = {-moment.number, -signal.SIGXFSZ, 128 + moment.number}
    return any(code in expected for code in codes) or (
        moment.what == "sample" and "DataLoader worker" in ended.said
    )


def report_of(case: Case, folder: Path, seed: int, kills: int) -> dict[str, Any]:
    """How often it was killed, and how it ended nevertheless."""
    moments = uninterrupted(case, folder / "whole")
    killed = folder / "killed"
    killed.mkdir()
    attempts = list(killed_often(case, killed, moments, random.Random(seed), kills))
    failed = [attempt for attempt in attempts if attempt["failed"]]
    if failed:
        return {"kills": attempts, "failed": failed[-1]}
    whole, after = end(case, folder / "whole"), end(case, killed)
    return {
        "kills": attempts,
        "failed": None,
        "other": [
            key
            for left, right in zip(whole, after, strict=True)
            for key in left.keys() - {"seen"}
            if left[key] != right[key]
        ],
        "begins": (killed / "begins.txt").read_text().split(),
        "left": sorted(path.name for path in (killed / "out").iterdir()),
        "left by the whole": sorted(path.name for path in (folder / "whole" / "out").iterdir()),
    }


def warm_up(folder: Path) -> None:
    """Import, by a training, what each child would otherwise have to import."""
    import datasets  # noqa: F401 - for the children

    torch.set_num_threads(1)
    (folder / "warm").mkdir()
    stdout, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115 - open to the end
    background, Trainer.background_checkpoints = Trainer.background_checkpoints, None
    train(Case(), folder / "warm")
    sys.stdout = stdout
    Trainer.background_checkpoints = background


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--only")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warm_up(options.folder)
    report = {}
    for number, (name, case) in enumerate(CASES.items()):
        needs = KINDS[case.reads].needs
        if case.processes != options.processes or options.only not in (None, name):
            continue
        if needs and find_spec(needs) is None:
            continue
        report[name] = report_of(
            case, options.folder / str(number), options.seed + number, options.kills
        )
    print(json.dumps(report))


if __name__ == "__main__":
    main()
