"""Columns that the model takes, and messages about the others."""

import logging

import pytest
import torch
from tiny import tiny
from torch import nn

from lightrainer.lightning_modules.data.collators import remove_unused
from lightrainer.lightning_modules.data.lengths import is_table
from lightrainer.lightning_modules.models.inspection import signature_columns


@pytest.fixture(scope="module")
def datasets():
    import datasets

    return datasets


def table(datasets, *names):
    return datasets.Dataset.from_dict({name: [1, 2] for name in names})


class Everything(nn.Module):
    def forward(self, input_ids, *rest, attention_mask=None, labels=None, **more):
        return None


@pytest.mark.parametrize(
    ("model", "label_names", "expected"),
    [
        (tiny(), ["labels"], ["x", "labels", "label", "label_ids"]),
        (tiny(), ["target"], ["x", "labels", "label", "label_ids", "target"]),
        (tiny(), ["label", "target", "target"], ["x", "labels", "label", "label_ids", "target"]),
        (tiny(), [], ["x", "labels", "label", "label_ids"]),
        (Everything(), [], ["input_ids", "rest", "attention_mask", "labels", "more", "label", "label_ids"]),
    ],
)
def test_columns_of_the_model(model, label_names, expected):
    """The arguments of its `forward`, then what collators turn into labels; each once, in a fixed order."""
    assert signature_columns(model, label_names) == expected


def test_tables(datasets):
    made = table(datasets, "x")
    assert is_table(made)
    assert is_table(made.with_format("torch"))
    assert not any(is_table(other) for other in ([], {}, None, datasets.DatasetDict({"train": made})))


def test_a_table_is_told_without_the_library(monkeypatch):
    """Before `datasets` is imported nothing is a table."""
    import sys

    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    assert not is_table([])
    assert "datasets" not in sys.modules


def test_unused_columns_go_and_are_named(datasets, caplog):
    data = table(datasets, "x", "name", "labels", "path")
    with caplog.at_level(logging.INFO, logger="lightrainer"):
        left = remove_unused(data, ["x", "labels", "label"], "Tiny", "training")
    assert left.column_names == ["x", "labels"]
    assert data.column_names == ["x", "name", "labels", "path"]
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert record.name.startswith("lightrainer.")
    words = ["training data", "Tiny.forward", "name, path", "remove_unused_columns=False"]
    assert [word for word in words if word not in record.getMessage()] == []


def test_without_a_description(datasets, caplog):
    with caplog.at_level(logging.INFO, logger="lightrainer"):
        remove_unused(table(datasets, "x", "name"), ["x"], "Tiny", None)
    assert "None" not in caplog.text


def test_nothing_to_remove(datasets, caplog):
    """The same table, and not a word."""
    data = table(datasets, "x", "labels")
    with caplog.at_level(logging.INFO, logger="lightrainer"):
        assert remove_unused(data, ["x", "labels"], "Tiny", "training") is data
    assert caplog.records == []


def test_nothing_left(datasets):
    with pytest.raises(ValueError, match="evaluation data") as error:
        remove_unused(table(datasets, "text", "name"), ["x", "labels"], "Tiny", "evaluation")
    words = ["text, name", "x, labels", "Tiny.forward", "remove_unused_columns=False", "data_collator", "Rename"]
    assert [word for word in words if word not in str(error.value)] == []


def test_the_format_of_a_table_is_kept(datasets):
    left = remove_unused(table(datasets, "x", "name").with_format("torch"), ["x"], "Tiny", None)
    assert torch.is_tensor(left[0]["x"])
