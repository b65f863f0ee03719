"""The watch looks into all values and names faults; `tests/parity/test_underflow_overflow.py`
compares its numbers.
"""

import logging
import math
import pickle

import pytest
import torch
from torch import nn

from lightrainer import DebugUnderflowOverflow


class Logarithm(nn.Module):
    def forward(self, x):
        return torch.log(x)


class Block(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), last

    def forward(self, x):
        return self.last(self.first(x))


class Model(nn.Module):
    """Two blocks; the last layer of the second is the one in question."""

    def __init__(self, last):
        super().__init__()
        torch.manual_seed(1)
        self.blocks = nn.ModuleList([Block(nn.Tanh()), Block(last)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return {"logits": x, "loss": x.mean()}


X = torch.ones(2, 4)
SOUND = nn.Tanh()
EIGHT = [  # in the order in which they end
    "blocks.0.first, Linear",
    "blocks.0.last, Tanh",
    "blocks.0, Block",
    "blocks.1.first, Linear",
    "blocks.1.last, {}",
    "blocks.1, Block",
    "the whole model, Model",
]


@pytest.fixture(autouse=True)
def log(caplog):
    caplog.set_level(logging.INFO, "lightrainer")
    return caplog


@pytest.mark.parametrize("kept", [1, 3, 100])
def test_underflow_overflow_logarithm_of_a_negative_number(log, kept):
    """In float32; the report ends with the layer, and the numbers before it are finite."""
    model = Model(Logarithm())
    watch = DebugUnderflowOverflow(model, max_frames_to_save=kept)
    with pytest.raises(
        ValueError, match=r"inf or NaN in output of blocks\.1\.last, Logarithm \(batch 0\)"
    ):
        model(X)
    *before, last = watch.frames
    assert [frame.module for frame in watch.frames] == [
        name.format("Logarithm") for name in EIGHT[:5]
    ][-kept:]
    assert not any(frame.faults for frame in before)
    assert last.faults == ["output"]
    (record,) = log.records
    assert record.levelno == logging.ERROR
    for text in (
        "blocks.1.last, Logarithm",
        "nan  output",
        "abs min",
        f"last {min(kept, 5)} forward passes",
    ):
        assert text in record.getMessage()


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
@pytest.mark.parametrize("where", ["weight", "input[0]"])
def test_underflow_overflow_inspects_inputs(where, bad):
    model, x = nn.Linear(4, 4), X.clone()
    (x if where == "input[0]" else model.weight.data)[0, 0] = bad
    with (
        DebugUnderflowOverflow(model),
        pytest.raises(ValueError, match=r"inf or NaN in .*Linear") as error,
    ):
        model(x)
    assert where in str(error.value)


def test_masks_may_be_infinite():
    """Inputs by keyword are shown, and are no reason to end; what comes out is."""
    mask = torch.tensor([0.0, -math.inf])
    model = nn.Module()
    model.forward = lambda x, mask: x
    watch = DebugUnderflowOverflow(model)
    model(X, mask=mask)
    assert watch.frames[-1].ranges["input.mask"] == (0.0, math.inf)
    model.forward = lambda x, mask: {"mask": mask}
    with pytest.raises(ValueError, match=r"output\.mask"):
        model(X, mask=mask)


def test_batches_are_traced(log):
    """Each pass of those batches is reported as it goes by; nothing in them ends the run, in
    others it does.
    """
    model = Model(SOUND)
    DebugUnderflowOverflow(model, trace_batch_nums=[1, 2])
    for _ in range(4):
        model(X)
    assert [record.levelno for record in log.records] == [logging.WARNING] * 14
    assert [record.args[0] for record in log.records] == [1] * 7 + [2] * 7
    assert EIGHT[0] in log.records[0].getMessage()
    log.clear()
    model = Model(Logarithm())
    DebugUnderflowOverflow(model, trace_batch_nums=[0])
    model(X)
    assert "nan" in log.text
    with pytest.raises(ValueError, match="batch 1"):
        model(X)


def test_watch_can_be_taken_off():
    model = Model(Logarithm())
    with DebugUnderflowOverflow(model) as watch:
        pass
    assert not any(module._forward_hooks for module in model.modules())
    assert model(X)["logits"].isnan().any()
    assert not watch.frames


def test_underflow_overflow_watched_model_can_be_copied_and_pickled():
    """As checkpoints of whole models do; the copy is watched by a copy."""
    model = Model(SOUND)
    watch = DebugUnderflowOverflow(model)
    read = pickle.loads(pickle.dumps(model))
    read(X)
    assert watch.batch_number == 0
