"""Trains in forked children that are killed while they save, and reports what the last of them ends with.

Run as a script by test_trainer_kills.py: `kill_trainer.py FOLDER`. Prints one JSON object.
"""

import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from tiny import points, same, trainer, weights

from lightrainer import get_last_checkpoint
from lightrainer.lightning_modules import engine  # imported before the forks, so that they start at once

STEPS = 12
WATCHED = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "open")
assert engine


def train(folder: Path) -> None:
    """What a script that may be killed at any time does: go on if there is something to go on from."""
    made = trainer(
        folder / "out",
        train_dataset=points(48),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=3,
        eval_strategy="steps",
        eval_steps=3,
    )
    begin = get_last_checkpoint(folder / "out")
    with (folder / "begins.txt").open("a") as file:
        file.write(f"{os.path.basename(begin) if begin else 'nothing'}\n")
    made.train(resume_from_checkpoint=True if begin else None)
    assert made.state.global_step == STEPS
    history = [{k: v for k, v in entry.items() if "per_second" not in k and "time" not in k} for entry in logs(made)]
    torch.save({"weights": weights(made.model), "history": history}, folder / "end.pt")


def logs(made) -> list[dict]:
    return [entry for entry in made.state.log_history if "train_loss" not in entry]


def train_until(folder: Path, changes: int) -> None:
    """Die just before the `changes`-th change below the output folder."""
    seen = 0

    def watch(event: str, args: tuple) -> None:
        nonlocal seen
        if event in WATCHED and str(folder / "out") in str(args[0]):
            seen += 1
            if seen == changes:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    train(folder)


def forked(action: Callable[[], None]) -> bool:
    """Whether the child came to the end; one that was not killed and failed all the same ends this script."""
    pid = os.fork()
    if pid == 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # the child's logs are of no interest
        status = 1
        try:
            action()
            status = 0
        finally:
            if status:
                import traceback

                traceback.print_exc()
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
        sys.exit("a child failed")
    return not os.WIFSIGNALED(status)


def killed_often(folder: Path, report: dict) -> None:
    """Fork one child after the other until one comes to the end."""
    draw = random.Random(1)
    for _ in range(100):
        until = draw.randint(5, 50)
        if forked(lambda until=until: train_until(folder, until)):
            return
        report["kills"] += 1
        report["hidden"] += any(path.name.startswith(".") for path in (folder / "out").iterdir())


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    report = {"kills": 0, "hidden": 0}
    for name in ("whole", "killed", "forgetful"):
        (folder / name).mkdir()
    forked(lambda: train(folder / "whole"))
    killed_often(folder / "killed", report)
    # The control goes on from a checkpoint without the state of the random generators.
    step = f"checkpoint-{STEPS - 2}"
    shutil.copytree(folder / "whole" / "out" / step, folder / "forgetful" / "out" / step)
    for name in ("rng_state.pth", "_manifest.json"):
        (folder / "forgetful" / "out" / step / name).unlink()
    forked(lambda: train(folder / "forgetful"))
    ends = {name: torch.load(folder / name / "end.pt") for name in ("whole", "killed", "forgetful")}
    for name in ("killed", "forgetful"):
        report[name] = same(ends["whole"]["weights"], ends[name]["weights"])
    report["history"] = ends["whole"]["history"] == ends["killed"]["history"]
    report["begins"] = (folder / "killed" / "begins.txt").read_text().split()
    report["left"] = sorted(path.name for path in (folder / "killed" / "out").iterdir())
    print(json.dumps(report))


if __name__ == "__main__":
    main()
