"""Columns that the model takes, and messages about the others."""

import pytest
import torch
from tiny import tiny
from torch import nn

from lightrainer.lightning_modules.data.collators import remove_unused
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


def test_the_format_of_a_table_is_kept(datasets):
    left = remove_unused(table(datasets, "x", "name").with_format("torch"), ["x"], "Tiny", None)
    assert torch.is_tensor(left[0]["x"])
