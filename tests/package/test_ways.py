"""The functions that run in a step, a save, an evaluation and a resumption, counted, so that none of
these ways through the package grows unnoticed.

A figure is raised only in a commit that says why.
"""

import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from lightrainer import Trainer, TrainerCallback, TrainingArguments
from lightrainer.facade.checkpointing import saving

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("facade", "lightning_modules", "callbacks", "package")


class Linear(nn.Linear):
    def forward(self, x, labels):
        return {"loss": nn.functional.cross_entropy(super().forward(x), labels)}


class Way:
    """Collects the functions of the package that this thread enters between `begin` and `end`.

    Comprehensions count with the function around them, as Python 3.12 has it.
    """

    def __init__(self):
        self.codes = set()

    def begin(self):
        sys.setprofile(
            lambda frame, event, argument: event == "call" and self.codes.add(frame.f_code)
        )

    def end(self):
        sys.setprofile(None)

    def __enter__(self):
        self.begin()
        return self

    def __exit__(self, *error):
        self.end()

    @property
    def functions(self):
        return {code for code in self.codes if own(code) and not code.co_name.startswith("<")}

    @property
    def files(self):
        return {code.co_filename for code in self.functions}


class UntilFirstStep(TrainerCallback):
    def __init__(self, way):
        self.way = way

    def on_step_begin(self, args, state, control, **kwargs):
        self.way.end()


class Steps(TrainerCallback):
    """Ends a way at the end of step 7, and begins it at step 5: the next batch is read in it."""

    def __init__(self, way):
        self.way = way

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 5:
            self.way.begin()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 7:
            self.way.end()


def own(code):
    path = Path(code.co_filename)
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in FOLDERS


def arguments(folder, **options):
    options = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True} | options
    return TrainingArguments(
        str(folder), max_steps=9, per_device_train_batch_size=4, use_cpu=True, **options
    )


def made(args, **kwargs):
    data = [{"x": torch.randn(8), "labels": torch.tensor(index % 4)} for index in range(64)]
    return Trainer(Linear(8, 4), args, train_dataset=data, eval_dataset=data, **kwargs)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A Trainer that has saved at step 3, and what that save entered.

    What is done once in a process is done by then.
    """
    folder = tmp_path_factory.mktemp("saved")
    # A save flushes the disk if the last flush was a second ago, which depends on the machine.
    changes = pytest.MonkeyPatch()
    changes.setattr(saving, "_BETWEEN_FLUSHES", math.inf)
    trainer = made(arguments(folder, save_strategy="steps", save_steps=3))
    way = Way()
    write = trainer._save_checkpoint

    def save(*args, **kwargs):
        if trainer.state.global_step != 6:
            return write(*args, **kwargs)
        with way:
            return write(*args, **kwargs)

    trainer._save_checkpoint = save
    trainer.train()
    trainer.evaluate()
    changes.undo()
    return trainer, way


def test_step_enters_few_files_and_functions(tmp_path):
    way = Way()
    made(arguments(tmp_path), callbacks=[Steps(way)]).train()
    assert 5 < len(way.files) <= 24
    assert 20 < len(way.functions) <= 54


def test_arguments_enter_few_functions(saved, tmp_path):
    with Way() as way:
        arguments(tmp_path)
    assert 20 < len(way.functions) <= 54


def test_save_enters_few_functions(saved):
    _, way = saved
    assert 50 < len(way.functions) <= 152


def test_evaluation_enters_few_functions(saved):
    trainer, _ = saved
    with Way() as way:
        trainer.evaluate()
    assert 100 < len(way.functions) <= 236


def test_resumption_enters_few_functions_before_its_first_step(saved):
    trainer, _ = saved
    way = Way()
    resumed = made(trainer.args, callbacks=[UntilFirstStep(way)])
    resumed.args.max_steps = 12
    way.begin()
    resumed.train(resume_from_checkpoint=True)
    assert 200 < len(way.functions) <= 549
