"""Trainings drawn by chance, killed and starved of disk space by chance, until the time is up:
`make soak MINUTES=30`.

    soak.py [--minutes 10] [--seed 0] [--trainings 0] [--folder FOLDER]

Each training resumes after every fault until it ends, and is then compared with the same training
left alone: weights, logs and best step, bit for bit. A line of the table is a training;
`--seed N --trainings 1` repeats the one with that seed, and leaves its output in the folder. Exits
with 1 if anything differed.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.checkpoints.resumed_trainings import KINDS
from helpers.faults.kill_trainings_script import report_of, warm_up
from helpers.faults.killed_trainings import ANYTIME, ASKED, BEST, EVALUATED, WORKERS, Case

KILLS = 8
"""In one training, at most."""
READS = ["samples", "an unseeded sampler", "a table", "a table by length", "a stream"]
READS += ["a stream with a state", "a shuffled stream of rows"]
SHARDED = {"fsdp": "full_shard", "fsdp_config": {"version": 2}}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp": SHARDED,
    "fsdp in parts": {
        **SHARDED,
        "fsdp_config": {"version": 2, "state_dict_type": "SHARDED_STATE_DICT"},
    },
}
OPTIMIZERS = ("adamw_torch", "adafactor", "sgd", "rmsprop")
SCHEDULES = ("linear", "cosine", "constant_with_warmup")


def training_of(seed: int) -> tuple[Case, str]:
    """The training that belongs to a seed, always the same, and its description in the table."""
    draw = random.Random(seed)
    processes = draw.choice((1, 1, 1, 2, 2, 3))
    strategy = draw.choice(list(STRATEGIES)) if processes > 1 else ""
    reads = draw.choice(
        [name for name in READS if not KINDS[name].needs or find_spec(KINDS[name].needs)]
    )
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
    terminates = draw.random() < 0.2
    moments = ("pass", "change") if terminates else (*ANYTIME, "sample") if workers else ANYTIME
    case = Case(
        reads,
        {**arguments, **ASKED} if terminates else arguments,
        moments,
        in_background=draw.random() < 0.4,
        processes=processes,
        part=draw.uniform(0.25, 0.6),
        number=signal.SIGTERM if terminates else signal.SIGKILL,
        full=0.0 if keeps_best else draw.choice((0.0, 0.0, 0.1, 0.3)),
    )
    description = [f"{processes} x {strategy}" if strategy else "1", reads]
    description += [f"accumulates {arguments['gradient_accumulation_steps']}"]
    description += (
        ["2 workers"] * workers
        + ["best"] * keeps_best
        + ["background"] * case.in_background
        + ["SIGTERM"] * terminates
    )
    return case, ", ".join([*description, *["full disks"] * bool(case.full)])


def differences(report: dict[str, Any]) -> list[str]:
    """What is not as it is without faults."""
    if report["failed"]:
        return [f"failed: {report['failed']['failed'].strip().splitlines()[-1][:300]}"]
    return [
        *report["other"],
        *(f"damaged: {path}" for kill in report["kills"] for path in kill["damaged"]),
    ]


def line(
    seed: object, kills: object, inside: object, went_on: object, differs: object, words: str
) -> str:
    return f"{seed!s:>6}  {kills!s:>5}  {inside!s:>6}  {went_on!s:>9}  {differs!s:<11}  {words}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--minutes", type=float, default=10, help="begin no training after this many"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first training; the next ones count up"
    )
    parser.add_argument(
        "--trainings", type=int, default=0, help="exactly this many, whatever time they take"
    )
    parser.add_argument("--folder", type=Path, help="leave the output of all trainings there")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    warm_up(folder)
    begun, seed, different, sums = time.monotonic(), options.seed, 0, [0, 0, 0]
    print(line("seed", "kills", "inside", "continued", "differences", "training"))
    while seed < options.seed + options.trainings or (
        not options.trainings and time.monotonic() - begun < options.minutes * 60
    ):
        (case, words), place = training_of(seed), folder / str(seed)
        shutil.rmtree(place, ignore_errors=True)
        report = report_of(case, place, seed, KILLS)
        differs = differences(report)
        inside = sum(kill["hidden"] for kill in report["kills"])
        went_on = sum(begin != "nothing" for begin in report.get("begins", ()))
        counts = len(report["kills"]), inside, went_on
        print(line(seed, *counts, len(differs) or "-", words), flush=True)
        sums = [total + count for total, count in zip(sums, counts, strict=True)]
        for text in differs:
            print(
                f"        differs: {text}\n        repeat: --seed {seed} --trainings 1 --folder "
                f"{folder}",
                flush=True,
            )
        different += bool(differs)
        if not differs and options.folder is None:
            shutil.rmtree(place)
        seed += 1
    print(line("all", *sums, different, f"{seed - options.seed} trainings"))
    if different or options.folder:
        print(f"the output is in {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
