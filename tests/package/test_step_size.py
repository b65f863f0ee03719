"""The way of a training step through the package, counted, so that it does not grow unnoticed."""

import sys
from pathlib import Path

import torch
from torch import nn

from lightrainer import Trainer, TrainerCallback, TrainingArguments

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("facade", "lightning_modules", "callbacks", "package")


class Linear(nn.Linear):
    def forward(self, x, labels):
        return {"loss": nn.functional.cross_entropy(super().forward(x), labels)}


class Profile(TrainerCallback):
    """Collects the code that runs from the beginning of a step to its end, with the reading of
    the next one.
    """

    def __init__(self):
        self.seen = set()

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 5:
            sys.setprofile(
                lambda frame, event, argument: event == "call" and self.seen.add(frame.f_code)
            )

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 7:
            sys.setprofile(None)


def own(code):
    path = Path(code.co_filename)
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in FOLDERS


def test_step_enters_few_files_and_functions(tmp_path):
    """Comprehensions count with the function around them, as Python 3.12 has it."""
    data = [{"x": torch.randn(8), "labels": torch.tensor(index % 4)} for index in range(64)]
    options = {
        "per_device_train_batch_size": 4,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    args = TrainingArguments(str(tmp_path), max_steps=9, use_cpu=True, **options)
    profile = Profile()
    Trainer(Linear(8, 4), args, train_dataset=data, callbacks=[profile]).train()
    functions = {
        code
        for code in filter(own, profile.seen)
        if code.co_name not in ("<listcomp>", "<setcomp>", "<dictcomp>")
    }
    assert 5 < len({code.co_filename for code in functions}) <= 18
    assert 20 < len(functions) <= 50
