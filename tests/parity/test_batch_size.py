"""`auto_find_batch_size` where memory runs out: the batches, steps, logs and states of the
reference.
"""

import pytest
import torch
import transformers
from torch import nn

import lightrainer
from helpers.comparing.bit_differences import without_clock
from helpers.parity.harness import DEFAULTS
from helpers.parity.repairs import trainer_class


class Limited(nn.Module):
    """A classifier for which a batch may be too large; notes the batches of the training."""

    def __init__(self, limit):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.limit, self.tried = limit, []

    def forward(self, x, labels=None):
        if self.training:
            self.tried.append(len(x))
            if len(x) > self.limit:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def points(count):
    rows = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    return [{"x": row, "labels": row[:3].argmax()} for row in rows]


def seen_by_callbacks(api):
    class Seen(api.TrainerCallback):
        """Return the logs of a script."""

        def __init__(self):
            self.rows = []

        def on_step_end(self, args, state, control, **kwargs):
            batch = (
                args.per_device_train_batch_size,
                args.train_batch_size,
                args.gradient_accumulation_steps,
            )
            self.rows.append((state.global_step, state.max_steps, state.train_batch_size, *batch))

    return Seen()


def train(api, folder, limit=32, batch_size=64, resume=None, **changes):
    options = {
        **DEFAULTS,
        "per_device_train_batch_size": batch_size,
        "auto_find_batch_size": True,
        **changes,
    }
    model, recorder = Limited(limit), seen_by_callbacks(api)
    args = api.TrainingArguments(str(folder), **options)
    trainer = trainer_class(api)(
        model, args, train_dataset=points(200), eval_dataset=points(9), callbacks=[recorder]
    )
    result = trainer.train(resume_from_checkpoint=resume)
    history = [without_clock(entry) for entry in trainer.state.log_history]
    history[-1].pop("total_flos")
    return {
        "tried": model.tried,
        "callbacks": recorder.rows,
        "logs": history,
        "state": (trainer.state.train_batch_size, trainer.state.max_steps, trainer.state.epoch),
        "total": trainer.get_total_train_batch_size(trainer.args),
        "steps": result.global_step,
        "weights": {name: value.tolist() for name, value in model.state_dict().items()},
        "args": (
            trainer.args.per_device_train_batch_size,
            trainer.args.gradient_accumulation_steps,
        ),
    }


CHANGES = [
    {},
    {"gradient_accumulation_steps": 3},
    {"max_steps": 5},
    {"eval_strategy": "epoch", "lr_scheduler_type": "cosine"},
    {"limit": 1, "batch_size": 9},
    {"limit": 64},
]


@pytest.mark.parametrize(
    "changes",
    CHANGES,
    ids=["plain", "accumulated", "by steps", "evaluated", "down to one", "enough"],
)
def test_batch_size_in_logs_equals_the_reference(tmp_path, changes):
    """To the last bit: batches that were tried, losses, learning rates, steps, arguments and
    state in callbacks.
    """
    theirs = train(transformers, tmp_path / "theirs", **changes)
    ours = train(lightrainer, tmp_path / "ours", **changes)
    for name in theirs:
        assert ours[name] == theirs[name], name


def test_batch_size_without_a_fit_raises_the_same_error(tmp_path):
    for api in (transformers, lightrainer):
        with pytest.raises(RuntimeError, match="No executable batch size found, reached zero"):
            train(api, tmp_path, limit=0, batch_size=4)


def test_batch_size_found_is_kept_on_resumption(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 5}
    ends = []
    for api in (transformers, lightrainer):
        train(api, tmp_path / api.__name__, **options)
        checkpoint = str(tmp_path / api.__name__ / "checkpoint-5")
        ends.append(train(api, tmp_path / api.__name__, limit=32, resume=checkpoint, **options))
    theirs, ours = ends
    for name in ("tried", "callbacks", "state", "args", "weights"):
        assert ours[name] == theirs[name], name
    assert ours["tried"] == [32, 8, *[32] * 6, 8]
