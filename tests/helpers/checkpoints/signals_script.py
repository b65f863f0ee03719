"""Trains in forked children that get a signal at a chosen moment, resumes, and reports how it
ended.

Run as a script by test_signals.py: `signals_script.py FOLDER`. Prints one JSON object.
"""

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from helpers.processes import forking
from helpers.trainer.tiny_trainings import (
    At,
    Tiny,
    make_trainer,
    points,
    same_bits,
    weights,
    with_trainer_in_callbacks,
)
from lightrainer import EarlyStoppingCallback, get_last_checkpoint
from lightrainer.lightning_modules.internals import (
    lightning_internals,  # imported before the forks, so that they start at once
)

assert lightning_internals

ARGUMENTS = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_train_epochs": 2,
}
ARGUMENTS |= {
    "eval_strategy": "steps",
    "eval_steps": 3,
    "save_strategy": "steps",
    "save_steps": 100,
}


def ask_to_end(times: int = 1, number: int = signal.SIGTERM) -> None:
    for _ in range(times):
        os.kill(os.getpid(), number)


class Asked(Tiny):
    """Asks its own process to end in some forward pass of a training, or of an evaluation.

    With `killed`, the process is killed a pass later, once there is a checkpoint.
    """

    def __init__(
        self, training_pass=0, evaluation_pass=0, times=1, number=signal.SIGTERM, killed=""
    ):
        super().__init__()
        self.passes = {True: 0, False: 0}
        self.when = {True: training_pass, False: evaluation_pass}
        self.times, self.number = times, number
        self.killed, self.draws = killed, False

    def forward(self, x, labels=None):
        self.passes[self.training] += 1
        later = self.passes[self.training] - self.when[self.training]
        if later == 0:
            ask_to_end(self.times, self.number)
        if later == 1 and self.killed and self.when[self.training]:
            wait_for(Path(self.killed))
            os.kill(os.getpid(), signal.SIGKILL)
        if self.draws and not self.training:
            torch.rand(1)
        return super().forward(x, labels)


def wait_for(path: Path) -> None:
    """Return when it is there, or after ten seconds."""
    for _ in range(1000):
        if path.exists():
            return
        time.sleep(0.01)


def while_writing(folder: Path, name: str) -> None:
    """Ask to end when a checkpoint gets its name."""

    def watch(event: str, args: tuple) -> None:
        if (
            event == "os.rename"
            and str(args[1]).startswith(str(folder))
            and Path(args[1]).name == name
        ):
            ask_to_end()

    sys.addaudithook(watch)


def after_the_last_step(of, state, control) -> None:
    ask_to_end()


@dataclass
class Scenario:
    """When the signal comes, and what the training is like."""

    step: int
    """The step of the checkpoint."""
    model: dict[str, Any] = field(default_factory=dict)
    """Settings of the model, see `Asked`."""
    arguments: dict[str, Any] = field(default_factory=dict)
    callbacks: list[Any] = field(default_factory=list)
    renames: str = ""
    """The signal comes when a checkpoint gets this name."""
    killed: bool = False
    draws: bool = False
    """True where evaluations draw random numbers."""
    given: Callable[[], dict[str, Any]] = dict
    """Further parameters of the Trainer."""
    code: int = 128 + signal.SIGTERM
    """How the process ends; 254 stands for a KeyboardInterrupt that comes out of `train`."""

    def __post_init__(self) -> None:
        if self.model.get("number") == signal.SIGINT:
            self.code = 256 - signal.SIGINT
        if self.killed:
            self.code = -signal.SIGKILL


CTRL_C = {"number": signal.SIGINT}
ASKED_FOR = {"save_strategy": "no", "enable_jit_checkpoint": True}
BEST = {"metric_for_best_model": "loss"}


def two_sets() -> dict[str, Any]:
    return {"eval_dataset": {"first": points(6, seed=2), "second": points(6, seed=4)}}


def impatience() -> dict[str, Any]:
    """Callbacks that end the training at the second evaluation."""
    return {"callbacks": [EarlyStoppingCallback(1, early_stopping_threshold=100.0)]}


BY_EPOCH = {"eval_strategy": "epoch"}
ON_PLATEAU = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0}}
WORST = {
    "save_strategy": "best",
    "metric_for_best_model": "loss",
    "greater_is_better": True,
    "save_total_limit": 1,
}
SCENARIOS: dict[str, Scenario] = {
    "in a step": Scenario(5, {"training_pass": 9}),
    "in a step, twice": Scenario(5, {"training_pass": 10, "times": 2}),
    "in a step at which an evaluation is due": Scenario(3, {"training_pass": 5}),
    "in an evaluation": Scenario(3, {"evaluation_pass": 1}),
    "in an evaluation, and killed before it ends": Scenario(3, {"evaluation_pass": 1}, killed=True),
    "in an evaluation of an epoch": Scenario(
        6, {"evaluation_pass": 2}, {**BY_EPOCH, "save_strategy": "epoch"}
    ),
    "in the last step of an epoch": Scenario(6, {"training_pass": 12}, BY_EPOCH),
    "in a step of an epoch that is evaluated": Scenario(2, {"training_pass": 3}, BY_EPOCH),
    "while a checkpoint is written": Scenario(5, {}, {"save_steps": 4}, renames="checkpoint-4"),
    "with enable_jit_checkpoint": Scenario(5, {"training_pass": 9}, ASKED_FOR),
    "in an evaluation at the start": Scenario(0, {"evaluation_pass": 1}, {"eval_on_start": True}),
    "interrupted in a step": Scenario(5, {"training_pass": 9, **CTRL_C}),
    "interrupted in a step, twice": Scenario(
        4, {"training_pass": 10, "times": 2, **CTRL_C}, {"save_steps": 2}
    ),
    "interrupted in an evaluation": Scenario(3, {"evaluation_pass": 1, **CTRL_C}),
    "interrupted in an evaluation of an epoch": Scenario(
        6, {"evaluation_pass": 1, **CTRL_C}, BY_EPOCH
    ),
    "interrupted in an evaluation that sets the rate": Scenario(
        3, {"evaluation_pass": 1, **CTRL_C}, ON_PLATEAU
    ),
    "interrupted in an evaluation that tells what is best": Scenario(
        3, {"evaluation_pass": 1, **CTRL_C}, BEST
    ),
    "interrupted where only models are saved": Scenario(
        3, {"evaluation_pass": 1, **CTRL_C}, {"save_only_model": True}
    ),
    "interrupted in an evaluation that draws numbers": Scenario(
        3, {"evaluation_pass": 2, **CTRL_C}, draws=True
    ),
    "interrupted in the second of two evaluations": Scenario(
        3, {"evaluation_pass": 3, **CTRL_C}, given=two_sets
    ),
    "interrupted in an evaluation that ends the training": Scenario(
        4, {"evaluation_pass": 3, **CTRL_C}, {**BEST, "eval_steps": 2}, given=impatience
    ),
    "interrupted in an evaluation between two logs": Scenario(
        3, {"evaluation_pass": 1, **CTRL_C}, {"logging_steps": 2}
    ),
    "interrupted in the last evaluation": Scenario(12, {"evaluation_pass": 7, **CTRL_C}),
    "in the last step": Scenario(12, {"training_pass": 24}),
    "after the last step": Scenario(12, callbacks=[At("on_train_end", after_the_last_step)]),
    "with a schedule that looks at evaluations": Scenario(3, {"training_pass": 5}, ON_PLATEAU),
    "where only the best are saved": Scenario(6, {"training_pass": 12}, WORST),
    "where only models are saved": Scenario(5, {"training_pass": 9}, {"save_only_model": True}),
}


def made(folder: Path, scenario: Scenario, stops: bool):
    torch.manual_seed(3)
    if stops and scenario.renames:
        while_writing(folder, scenario.renames)
    killed = str(folder / f"checkpoint-{scenario.step}") if scenario.killed else ""
    model = Asked(**scenario.model, killed=killed) if stops else Asked()
    model.draws = scenario.draws
    callbacks = {"callbacks": scenario.callbacks} if stops and scenario.callbacks else {}
    arguments = {**ARGUMENTS, **scenario.arguments, **scenario.given(), **callbacks}
    return with_trainer_in_callbacks(
        make_trainer(folder, model=model, train_dataset=points(48), **arguments)
    )


def train(folder: Path, scenario: Scenario, stops: bool = False) -> None:
    """Train to the end, from the last checkpoint if there is one, and record how it ended."""
    trainer = made(folder, scenario, stops)
    trainer.train(resume_from_checkpoint=True if get_last_checkpoint(folder) else None)
    torch.save({"weights": weights(trainer.model), "history": history(trainer)}, folder / "end.pt")


def history(of) -> list[dict]:
    entries = [entry for entry in of.state.log_history if "train_loss" not in entry]
    return [
        {k: v for k, v in entry.items() if "per_second" not in k and "time" not in k}
        for entry in entries
    ]


def forked(action: Callable[[], None]) -> int:
    """The exit code of a child, negative for a signal that killed it; one that failed ends this
    script.
    """
    ended = forking.forked(action, log=Path(sys.argv[1], "children.txt"))
    if ended.codes == [1]:
        sys.exit(ended.said)
    return ended.codes[0]


def whole_of(folder: Path, scenario: Scenario) -> Path:
    """The folder of the training that nothing stops; scenarios which differ in the signal alone
    have one together.
    """
    kind = repr((sorted(scenario.arguments.items()), scenario.draws, scenario.given.__name__))
    whole = folder / hashlib.sha1(kind.encode()).hexdigest()
    if not whole.exists():
        whole.mkdir(parents=True)
        forked(lambda: train(whole, scenario))
    return whole


def report_of(folder: Path, scenario: Scenario) -> dict:
    """Train without and with a signal, resume, and compare."""
    whole, stopped = whole_of(folder.parent, scenario), folder / "stopped"
    stopped.mkdir(parents=True)
    code = forked(lambda: train(stopped, scenario, stops=True))
    came_to_the_end = (stopped / "end.pt").exists()
    left = sorted(path.name for path in stopped.iterdir())
    last = get_last_checkpoint(stopped)
    resumed = forked(lambda: train(stopped, scenario))
    ends = [torch.load(path / "end.pt") for path in (whole, stopped)]
    return {
        "code": code,
        "came to the end": came_to_the_end,
        "last": last and int(last.rpartition("-")[2]),
        "hidden": [name for name in left if name.startswith(".checkpoint-")],
        "resumed": resumed,
        "weights": same_bits(ends[0]["weights"], ends[1]["weights"]),
        "history": ends[0]["history"] == ends[1]["history"],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    print(
        json.dumps(
            {
                name: report_of(folder / str(i), one)
                for i, (name, one) in enumerate(SCENARIOS.items())
            }
        )
    )
