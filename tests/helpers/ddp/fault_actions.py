"""Trainings in which one of several processes fails: actions of `fault_script.py`, or a script for
torchrun.

    torchrun --nproc_per_node=2 fault_actions.py SCENARIO OUTPUT_FOLDER

Checkpoints go to the folder.
"""

import contextlib
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from helpers.processes.rank_training import QUIET
from lightrainer import Trainer, TrainerCallback, TrainingArguments
from lightrainer.facade.distributed.shared_decisions import SharedDecisions
from lightrainer.lightning_modules.internals.torch_names import default_store

SWITCHES = (
    "should_log",
    "should_evaluate",
    "should_save",
    "should_epoch_stop",
    "should_training_stop",
)


def rank() -> int:
    return int(os.environ["RANK"])


class Points(torch.utils.data.Dataset):
    """Eight features and a class, made when they are asked for; something may happen at one of
    them, by default the ninth.
    """

    def __init__(self, happens: Any = None, count: int = 32, at: int = 9):
        self.happens = happens
        self.count = count
        self.at = at
        self.read = 0

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.read += 1
        if self.happens is not None and self.read == self.at:
            self.happens()
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": x[:3].argmax()}


class Classifier(nn.Module):
    """In its third pass something may happen, in one process."""

    def __init__(self, happens: Any = None, width: int = 3):
        super().__init__()
        self.layer = nn.Linear(8, width)
        self.happens, self.passes = happens, 0

    def forward(self, x, labels=None):
        self.passes += self.training
        if self.happens is not None and self.passes == 3:
            self.happens()
        logits = self.layer(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class AtStep(TrainerCallback):
    """Something happens after the second step."""

    def __init__(self, happens):
        self.happens = happens

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            self.happens()


def make_trainer(
    folder: Path,
    model: nn.Module | None = None,
    data: Any = None,
    callback: Any = None,
    **changes: Any,
):
    options = {
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "num_train_epochs": 1,
        **QUIET,
    }
    options |= {
        "log_level": "warning",
        "log_level_replica": "warning",
        "save_strategy": "no",
        "logging_steps": 1,
    }
    options["ddp_timeout"] = 60
    arguments = TrainingArguments(output_dir=str(folder), **{**options, **changes})
    torch.manual_seed(7)
    callbacks = [] if callback is None else [callback]
    return Trainer(
        Classifier() if model is None else model,
        arguments,
        train_dataset=Points() if data is None else data,
        eval_dataset=Points(count=12),
        callbacks=callbacks,
    )


class Decides(TrainerCallback):
    """Sets a switch of the control after the second step, in these processes."""

    def __init__(self, switch: str, ranks: tuple[int, ...]):
        self.switch, self.ranks = switch, ranks

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2 and rank() in self.ranks:
            if len(self.ranks) > 1 and rank() == 0:
                # as long as others may be waited for, and longer
                time.sleep(3 * SharedDecisions.seconds)
            setattr(control, self.switch, True)


def only(one: int, happens: Any) -> Any:
    """Something that happens in one process only."""
    return happens if rank() == one else None


def fail() -> None:
    raise ArithmeticError("no number left")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(folder: Path) -> None:
    """With workers, which hold copies of the connections of the process that forked them."""
    make_trainer(
        folder,
        callback=at_step(1, kill),
        dataloader_num_workers=2,
        dataloader_persistent_workers=True,
    ).train()


def before_training(folder: Path) -> None:
    trainer = make_trainer(folder)
    if rank() == 1:
        fail()
    trainer.train()


def catches(folder: Path) -> None:
    """One process continues with something else, and its connections stay open until the other
    one times out.
    """
    trainer = make_trainer(folder, Classifier(only(1, fail)), ddp_timeout=3)
    try:
        trainer.train()
    except ArithmeticError:
        wait_for_process_0()


def wait_for_process_0() -> None:
    """Wait until process 0, which keeps the store, has ended."""
    store = default_store()
    with contextlib.suppress(dist.DistError):
        while not store.check(["ended"]):
            time.sleep(0.05)


def in_evaluation(folder: Path) -> None:
    trainer = make_trainer(folder)
    trainer.compute_metrics = lambda prediction: fail() if rank() == 1 else {}
    trainer.evaluate()
    trainer.train()


def hangs(folder: Path) -> None:
    """One process never reaches the end of a step; signals are left to Python, as ours waits for
    that end.
    """
    trainer = make_trainer(folder, callback=at_step(1, lambda: time.sleep(600)), ddp_timeout=3)
    trainer.checkpoint_on_signals = ()
    trainer.train()


def at_step(one: int, happens: Any) -> Any:
    return AtStep(happens) if rank() == one else None


def decided(folder: Path, switch: str, ranks: tuple[int, ...], **changes: Any) -> None:
    SharedDecisions.seconds = 0.1 if len(ranks) > 1 else 1.0
    make_trainer(folder, callback=Decides(switch, ranks), **{"logging_steps": 3, **changes}).train()


def decided_outside_of_callbacks(folder: Path) -> None:
    SharedDecisions.seconds = 1.0
    trainer = make_trainer(folder)
    compute_loss = trainer.compute_loss

    def compute_and_decide(*given: Any, **named: Any) -> Any:
        trainer.control.should_training_stop = rank() == 0 and trainer.state.global_step == 2
        return compute_loss(*given, **named)

    trainer.compute_loss = compute_and_decide
    trainer.train()


class LogsAlone(TrainerCallback):
    """Logs its own value after the second step, where a log is due, in these processes."""

    def __init__(self, ranks: tuple[int, ...]):
        self.ranks = ranks
        self.trainer: Any = None

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2 and rank() in self.ranks:
            self.trainer.log({"own": 1.0})


def logged(folder: Path, ranks: tuple[int, ...]) -> None:
    SharedDecisions.seconds = 1.0
    callback = LogsAlone(ranks)
    callback.trainer = make_trainer(folder, callback=callback, logging_steps=2)
    callback.trainer.train()


ACTIONS: dict[str, Any] = {
    action.__name__: action for action in (killed, before_training, catches, hangs, in_evaluation)
}
ACTIONS |= {
    "raises": lambda folder: make_trainer(folder, Classifier(only(1, fail))).train(),
    "third_of_three": lambda folder: make_trainer(folder, callback=at_step(2, fail)).train(),
    # which hosts the store
    "first_killed": lambda folder: make_trainer(folder, callback=at_step(0, kill)).train(),
    "leaves": lambda folder: make_trainer(
        folder, data=Points(only(1, lambda: os._exit(0)))
    ).train(),
    # At its first sample: while an earlier batch is on its way from the worker, torch may report the
    # connection that the worker's end has reset instead of the worker.
    "worker_dies": (
        lambda folder: make_trainer(
            folder, data=Points(only(1, kill), at=1), dataloader_num_workers=1
        ).train()
    ),
    "absent": lambda folder: make_trainer(folder, ddp_timeout=2).train(),
    "decided_outside": decided_outside_of_callbacks,
    "log_alone": partial(logged, ranks=(0,)),
    "log_together": partial(logged, ranks=(0, 1)),
    "stop_before_save": partial(
        decided, switch="should_training_stop", ranks=(0,), save_strategy="steps", save_steps=2
    ),
    "decided_by_other": partial(decided, switch="should_evaluate", ranks=(1,), ddp_timeout=4),
}
for switch in SWITCHES:
    ACTIONS[f"{switch}_alone"] = partial(decided, switch=switch, ranks=(0,))
    ACTIONS[f"{switch}_together"] = partial(decided, switch=switch, ranks=(0, 1))

if __name__ == "__main__":
    scenario, folder = sys.argv[1:]
    ACTIONS[scenario](Path(folder))
