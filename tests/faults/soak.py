"""Trainings drawn by chance, killed and starved of disk space by chance, until the time is up: `make soak MINUTES=30`.

    soak.py [--minutes 10] [--seed 0] [--trainings 0] [--folder FOLDER]

Each training goes on after every fault until it comes to its end, which is compared with that of the same training left
alone: weights, logs and best step, bit for bit. A line of the table is a training; `--seed N --trainings 1` repeats the
one with that seed, and leaves its output in the folder. Ends with 1 if anything differed.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter as Times
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "facade"), str(HERE.parent / "shared")]

from disk_trainings import refuse
from forking import Ended, forked
from kill_trainings import differ, found, uninterrupted, warm_up, was_meant
from moments import Moment, drawn
from resuming import KINDS
from trainings import ANYTIME, BEST, EVALUATED, WORKERS, Case, end, train

from lightrainer.lightning_modules import checkpoints

KILLS = 8
"""In one training, at most."""
READS = [
    "samples",
    "samples in sequence",
    "an unseeded sampler",
    "a table",
    "a table by length",
    "a stream",
    "a stream with a state",
    "a shuffled stream of rows",
]
SHARDED = {"fsdp": "full_shard", "fsdp_config": {"version": 2}}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp": SHARDED,
    "fsdp in parts": {**SHARDED, "fsdp_config": {"version": 2, "state_dict_type": "SHARDED_STATE_DICT"}},
}
OPTIMIZERS = ("adamw_torch", "adafactor", "sgd", "rmsprop")
SCHEDULES = ("linear", "cosine", "constant_with_warmup")


@dataclass
class Training:
    """What was drawn for a seed.

    Attributes:
        case: the training.
        words: what it is, for the table.
        full: how likely a write below the output folder is to fail, in attempts with a full disk.
    """

    case: Case
    words: str
    full: float


def training_of(seed: int) -> Training:
    """The training that belongs to a seed: always the same one."""
    draw = random.Random(seed)
    processes = draw.choice((1, 1, 1, 2, 2, 3))
    strategy = draw.choice(list(STRATEGIES)) if processes > 1 else ""
    reads = draw.choice([name for name in READS if not KINDS[name].needs or find_spec(KINDS[name].needs)])
    workers = draw.random() < 0.3
    keeps_best = draw.random() < 0.3 and not KINDS[reads].arguments.get("eval_strategy")
    saves = draw.choice((1, 1, 2, 3))
    arguments: dict[str, Any] = {
        "save_strategy": "steps",
        "save_steps": saves,
        "save_total_limit": draw.choice((1, 2, 3, None)),
        "per_device_train_batch_size": draw.choice((1, 2)) if processes == 1 else 1,
        "gradient_accumulation_steps": draw.choice((1, 2, 3)),
        "optim": draw.choice(OPTIMIZERS) if not strategy.startswith("fsdp") else "adamw_torch",
        "lr_scheduler_type": draw.choice(SCHEDULES),
        "max_grad_norm": draw.choice((0.0, 0.5)),
        "max_steps": draw.choice((6, 9, 12)),
        **STRATEGIES.get(strategy, {}),
        **(WORKERS if workers else {}),
        **({**EVALUATED, **BEST, "eval_steps": saves} if keeps_best else {}),
    }
    asked = draw.random() < 0.2
    moments = ("pass", "change") if asked else (*ANYTIME, "sample") if workers else ANYTIME
    case = Case(
        reads,
        {**arguments, "enable_jit_checkpoint": True} if asked else arguments,
        moments,
        in_background=draw.random() < 0.4,
        processes=processes,
        part=draw.uniform(0.25, 0.6),
        number=signal.SIGTERM if asked else signal.SIGKILL,
    )
    said = [
        f"{processes} x {strategy}" if strategy else "1",
        reads,
        f"accumulates {arguments['gradient_accumulation_steps']}",
    ]
    said += ["2 workers"] * workers + ["best"] * keeps_best + ["background"] * case.in_background + ["SIGTERM"] * asked
    full = 0.0 if keeps_best else draw.choice((0.0, 0.0, 0.1, 0.3))
    return Training(case, ", ".join([*said, *(["full disks"] if full else [])]), full)


def attempt(of: Training, folder: Path, moment: Moment | None, starved: int | None, log: Path) -> Ended:
    """Begin or go on, until the moment comes or the end.

    Args:
        of: the training.
        folder: its own.
        moment: None for one that is left alone.
        starved: the process whose disk is full now and then.
        log: gets what is said.
    """

    def action() -> None:
        if starved is not None:
            draw = random.Random(str(log))
            refuse(folder / "out", lambda: draw.random() < of.full, starved)
        train(of.case, folder, moment)

    (folder / "out").mkdir(exist_ok=True)
    seconds = None if moment is None else moment.from_outside
    victims = () if moment is None else moment.ranks
    return forked(action, of.case.processes, log=log, killed_after=seconds, victims=victims, seconds=300)


def forget_generators(folder: Path) -> None:
    """Take from all checkpoints what random numbers go on from."""
    for checkpoint in found(folder):
        for path in (*checkpoint.glob("rng_state*.pth"), checkpoint / "_manifest.json"):
            path.unlink(missing_ok=True)


def attempts(
    of: Training, folder: Path, seen: list[dict[str, float]], seed: int, control: bool
) -> Iterator[dict[str, Any]]:
    """Every time that it was begun, and what was found then; the last time it came to its end."""
    draw = random.Random(f"faults of {seed}")
    for number in range(KILLS + 1):
        kind = draw.choice(of.case.moments)
        moment = drawn(kind, draw, seen, of.case.part, of.case.number) if number < KILLS else None
        if control and (folder / "out").is_dir():
            forget_generators(folder)
        starved = draw.randrange(of.case.processes) if moment is not None and draw.random() < of.full * 2 else None
        ended = attempt(of, folder, moment, starved, folder / f"log{number}.txt")
        killed = any(ended.codes)
        yield {
            "killed": killed,
            "kind": kind if killed else "",
            "starved": starved is not None,
            "inside a save": killed
            and any(path.name.startswith(".checkpoint-") for path in (folder / "out").iterdir()),
            "damaged": [str(path) for path in found(folder) if checkpoints.problems(path)],
            "failed": "" if not killed or (moment is not None and was_meant(ended, moment)) else ended.said[-4000:],
        }
        if not killed:
            return


def report_of(seed: int, folder: Path, control: bool) -> dict[str, Any]:
    """How the training of a seed went; `differs` names what is not as it is without faults."""
    of = training_of(seed)
    whole, killed = folder / "whole", folder / "killed"
    shutil.rmtree(folder, ignore_errors=True)
    seen = uninterrupted(of.case, whole)
    killed.mkdir(parents=True)
    made = list(attempts(of, killed, seen, seed, control))
    begins = (killed / "begins.txt").read_text().split() if (killed / "begins.txt").exists() else []
    report = {
        "words": of.words,
        "kills": sum(one["killed"] for one in made),
        "kinds": Times(one["kind"] for one in made if one["killed"]),
        "inside": sum(one["inside a save"] for one in made),
        "starved": sum(one["starved"] for one in made),
        "continuations": sum(begin != "nothing" for begin in begins),
        "differs": [f"damaged: {path}" for one in made for path in one["damaged"]],
    }
    failed = next((one["failed"] for one in made if one["failed"]), "")
    if failed:
        report["differs"].append(f"failed: {failed.strip().splitlines()[-1][:300]}")
    else:
        pairs = zip(end(of.case, whole), end(of.case, killed), strict=True)
        report["differs"] += sorted({what for left, right in pairs for what in left if differ(left, right, what)})
    return report


def line(seed: object, kills: object, inside: object, full: object, went_on: object, differs: str, words: str) -> str:
    return f"{seed!s:>6}  {kills!s:>5}  {inside!s:>6}  {full!s:>5}  {went_on!s:>9}  {differs:<11}  {words}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10, help="begin no training after so many")
    parser.add_argument("--seed", type=int, default=0, help="of the first training; the next ones count up")
    parser.add_argument("--trainings", type=int, default=0, help="so many, whatever time they take")
    parser.add_argument("--control", action="store_true", help="take the generators from checkpoints: it has to differ")
    parser.add_argument("--folder", type=Path, help="leave the output of all trainings there")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    warm_up(folder)
    begun, seed, sums, different = time.monotonic(), options.seed, Times(), []
    print(line("seed", "kills", "inside", "full", "continued", "differences", "training"))
    print(line("", "", "a save", "disks", "", "", ""))
    while (
        seed < options.seed + options.trainings
        if options.trainings
        else time.monotonic() - begun < options.minutes * 60
    ):
        found = report_of(seed, folder / str(seed), options.control)
        counts = [found[name] for name in ("kills", "inside", "starved", "continuations")]
        print(line(seed, *counts, str(len(found["differs"]) or "-"), found["words"]), flush=True)
        sums.update(dict(zip(("kills", "inside", "starved", "continuations"), counts, strict=True)), trainings=1)
        sums.update({f"by {kind}": times for kind, times in found["kinds"].items()})
        for text in found["differs"]:
            print(f"        differs: {text}\n        repeat: --seed {seed} --trainings 1 --folder {folder}", flush=True)
        different += [seed] * bool(found["differs"])
        if not found["differs"] and options.folder is None:
            shutil.rmtree(folder / str(seed))
        seed += 1
    print(line("all", sums["kills"], sums["inside"], sums["starved"], sums["continuations"], str(len(different)), ""))
    print("kills by moment:", ", ".join(f"{name[3:]} {sums[name]}" for name in sorted(sums) if name.startswith("by ")))
    if different or options.folder:
        print(f"the output is in {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
