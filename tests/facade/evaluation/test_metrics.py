"""Speed figures and their presentation, number for number those of the reference."""

import time

import numpy as np
import pytest
import torch

from lightrainer import Seq2SeqTrainer, Trainer
from lightrainer.facade.evaluation.metrics import (
    denumpify_detensorize,
    metrics_format,
    speed_metrics,
)


@pytest.fixture(scope="module")
def reference():
    return pytest.importorskip("transformers").trainer_utils


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still, at 1000.0 seconds."""
    monkeypatch.setattr(time, "time", lambda: 1000.0)


COUNTS = [
    {},
    {"num_samples": 7},
    {"num_steps": 3},
    {"num_samples": 7, "num_steps": 3, "num_tokens": 1000},
]


@pytest.mark.parametrize("counts", [*COUNTS, {"num_samples": 0}, {"num_samples": 2.5}])
@pytest.mark.parametrize("start", [1000.0, 999.99999, 998.123456, 0.0])
def test_speed_metrics_are_rounded(reference, clock, counts, start):
    """Rounded to four and three places; nothing is divided by a time of zero."""
    assert speed_metrics("eval", start, **counts) == reference.speed_metrics(
        "eval", start, **counts
    )


VALUES = {
    "text": "as it is",
    "bool": np.bool_(True),
    "half": np.float32(0.5),
    "array": np.array([1, 2]),
    "one": torch.tensor(2.5),
    "one in a row": torch.tensor([[4]]),
    "several": torch.tensor([1, 2]),
    "nested": {"list": [np.float64(1.0), (torch.tensor(1), {"deep": np.int8(2)})]},
}


@pytest.mark.parametrize("name", VALUES)
def test_plain_numbers(reference, name):
    expected, actual = (
        convert(VALUES[name])
        for convert in (reference.denumpify_detensorize, denumpify_detensorize)
    )
    assert type(actual) is type(expected)
    assert repr(actual) == repr(expected)


FORMATTED = {
    "train_runtime": [0.0, 0.5, 59.999, 61.25, 3725.256, 90061.07],
    "train_mem_cpu_alloc_delta": [0, 1 << 20, (5 << 20) - 1, -(3 << 20), np.int64(2 << 20)],
    "total_flos": [0, 2**30, 5.7 * 2**30],
    "train_loss": [0.123456789, -1.00004, 3.0, float("inf")],
    "train_samples": [12],
    "note": ["text"],
    "epoch": [0.33333333],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in FORMATTED.items() for value in values]
)
def test_readable_units(reference, name, value):
    expected = pytest.importorskip("transformers").Trainer.metrics_format({name: value})
    for function in (
        metrics_format,
        Trainer.metrics_format,
        Seq2SeqTrainer(torch.nn.Identity()).metrics_format,
    ):
        assert function({name: value}) == expected


def test_metric_with_memory_in_its_name_is_rounded():
    """Only memory in bytes, an integer, is converted to MiB."""
    assert metrics_format({"eval_item_mem_score": 0.123456}) == {"eval_item_mem_score": 0.1235}
