"""Speed figures and their presentation, number for number those of the reference."""

import time

import numpy as np
import pytest
import torch
from tiny import ARGUMENTS, points, tiny

from lightrainer import Seq2SeqTrainer, Trainer, TrainerCallback, TrainingArguments
from lightrainer.facade.evaluation.metrics import denumpify_detensorize, metrics_format, speed_metrics


@pytest.fixture(scope="module")
def reference():
    return pytest.importorskip("transformers").trainer_utils


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still, at 1000.0 seconds."""
    monkeypatch.setattr(time, "time", lambda: 1000.0)


COUNTS = [{}, {"num_samples": 7}, {"num_steps": 3}, {"num_samples": 7, "num_steps": 3, "num_tokens": 1000}]


@pytest.mark.parametrize("counts", [*COUNTS, {"num_samples": 0}, {"num_samples": 2.5}])
@pytest.mark.parametrize("start", [1000.0, 999.99999, 998.123456, 0.0])
def test_speed(reference, clock, counts, start):
    """Rounded to four and three places; nothing is divided by a time of zero."""
    assert speed_metrics("eval", start, **counts) == reference.speed_metrics("eval", start, **counts)


VALUES = {
    "float": 1.5,
    "text": "as it is",
    "none": None,
    "bool": np.bool_(True),
    "int": np.int64(3),
    "half": np.float32(0.5),
    "array": np.array([1, 2]),
    "one": torch.tensor(2.5),
    "one in a row": torch.tensor([[4]]),
    "several": torch.tensor([1, 2]),
    "nested": {"list": [np.float64(1.0), (torch.tensor(1), {"deep": np.int8(2)})]},
}


@pytest.mark.parametrize("name", VALUES)
def test_plain_numbers(reference, name):
    expected, actual = (convert(VALUES[name]) for convert in (reference.denumpify_detensorize, denumpify_detensorize))
    assert type(actual) is type(expected)
    assert repr(actual) == repr(expected)


FORMATTED = {
    "train_runtime": [0.0, 0.5, 59.999, 61.25, 3725.256, 90061.07],
    "train_mem_cpu_alloc_delta": [0, 1 << 20, (5 << 20) - 1, -(3 << 20)],
    "total_flos": [0, 2**30, 5.7 * 2**30],
    "train_loss": [0.123456789, -1.00004, 3.0, float("inf")],
    "train_samples": [12],
    "note": ["text"],
    "epoch": [0.33333333],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in FORMATTED.items() for value in values])
def test_readable_units(reference, name, value):
    expected = pytest.importorskip("transformers").Trainer.metrics_format({name: value})
    for function in (metrics_format, Trainer.metrics_format, Seq2SeqTrainer(torch.nn.Identity()).metrics_format):
        assert function({name: value}) == expected


class ClockIsSetBack(TrainerCallback):
    """Four hours at once, at the first log and in each evaluation."""

    def __init__(self, monkeypatch):
        self.monkeypatch = monkeypatch

    def on_step_end(self, args, state, control, **kwargs):
        self.set_back()

    def on_prediction_step(self, args, state, control, **kwargs):
        self.set_back()

    def set_back(self):
        now = time.time() - 4 * 3600
        self.monkeypatch.setattr(time, "time", lambda: now)


def test_a_clock_that_is_set_back_does_not_turn_times_round(tmp_path, monkeypatch):
    """Of training, evaluation and prediction; and the moment that `log` gets is one of `time.time()`."""
    seen = []

    class Logging(Trainer):
        def log(self, logs, start_time=None):
            seen.append(start_time)
            super().log(logs, start_time)

    before = time.time()
    args = TrainingArguments(str(tmp_path), **ARGUMENTS, include_num_input_tokens_seen="all")
    trainer = Logging(tiny(), args, train_dataset=points(8), callbacks=[ClockIsSetBack(monkeypatch)])
    trainer.model.main_input_name = "x"
    found = {**trainer.train().metrics, **trainer.evaluate(points(8)), **trainer.predict(points(8)).metrics}
    times = {name: value for name, value in found.items() if "runtime" in name or "per_second" in name}
    assert {"train_runtime", "eval_runtime", "test_runtime", "train_samples_per_second"} <= times.keys()
    assert [
        (name, value) for name, value in times.items() if not 0 < value < 1e6 or (value > 60 and "runtime" in name)
    ] == []
    assert all(entry["train_tokens_per_second"] > 0 for entry in trainer.state.log_history if "loss" in entry)
    (start,) = {moment for moment in seen if moment is not None}
    assert before <= start < before + 60
