"""The layer whose numbers become infinite or NaN is found, with what came before it."""

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


def readings(frame):
    return {reading.name: (reading.low, reading.high, reading.kind) for reading in frame.readings}


def test_a_sound_model_is_watched_and_nothing_is_said(log):
    model = Model(SOUND)
    expected = model(X)
    watch = DebugUnderflowOverflow(model)
    for _ in range(2):
        assert torch.equal(model(X)["logits"], expected["logits"])
    assert log.text == ""
    assert watch.batch_number == 2
    assert [(frame.batch, frame.module) for frame in watch.frames] == [
        (batch, name.format("Tanh")) for batch in (0, 1) for name in EIGHT
    ]


def test_the_numbers_of_a_frame():
    """The module's own weights, what went in, what came out: smallest and largest absolute value."""
    model = Model(SOUND)
    watch = DebugUnderflowOverflow(model)
    out = model(X)
    first = model.blocks[0].first

    def extent(tensor):
        return tensor.abs().min().item(), tensor.abs().max().item(), "float32"

    assert readings(watch.frames[0]) == {
        "weight": extent(first.weight),
        "bias": extent(first.bias),
        "input[0]": (1.0, 1.0, "float32"),
        "output": extent(first(X)),
    }
    assert readings(watch.frames[6])["output.logits"] == extent(out["logits"])
    assert readings(watch.frames[6])["output.loss"] == extent(out["loss"])


def test_the_logarithm_of_a_negative_number(log):
    """In float32; the report ends with the layer, and the numbers before it are finite."""
    model = Model(Logarithm())
    watch = DebugUnderflowOverflow(model)
    with pytest.raises(ValueError, match=r"inf or NaN in output of blocks\.1\.last, Logarithm \(batch 0\)"):
        model(X)
    *before, last = watch.frames
    assert [frame.module for frame in before] == EIGHT[:4]
    assert not any(frame.faults for frame in before)
    assert last.faults == ["output"]
    assert math.isnan(readings(last)["output"][1])
    (record,) = log.records
    assert record.levelno == logging.ERROR
    for text in (*EIGHT[:4], "blocks.1.last, Logarithm", "nan  output (float32)", "abs min", "last 5 forward passes"):
        assert text in record.getMessage()


@pytest.mark.parametrize(("dtype", "found"), [(torch.float16, True), (torch.bfloat16, False), (torch.float32, False)])
def test_an_overflow_in_half_precision(dtype, found):
    """300 times 300 is too much for float16; for the others it is not."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(dtype)
    with torch.no_grad():
        model[1].weight.fill_(300.0)
        model[0].weight.fill_(75.0)
    with DebugUnderflowOverflow(model):
        if not found:
            model(X.to(dtype))
            return
        with pytest.raises(ValueError, match=r"inf or NaN in output of 1, Linear"):
            model(X.to(dtype))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["weight", "input"])
def test_what_goes_in_is_looked_at_too(where, bad):
    model, x = nn.Linear(4, 4), X.clone()
    (x if where == "input" else model.weight.data)[0, 0] = bad
    with (
        DebugUnderflowOverflow(model),
        pytest.raises(ValueError, match=r"inf or NaN in .*of the whole model, Linear") as e,
    ):
        model(x)
    assert ("input[0]" if where == "input" else "weight") in str(e.value)


class Takes(nn.Module):
    """Hands on whatever it is given."""

    def forward(self, *args, **kwargs):
        return args[0] if args else kwargs


def frame_of(*args, **kwargs):
    model = Takes()
    watch = DebugUnderflowOverflow(model)
    model(*args, **kwargs)
    return readings(watch.frames[-1])


def test_all_kinds_of_values():
    nested = (torch.tensor([3, -7]), [torch.tensor([True, False]), None], {"a": "text", "b": torch.tensor(1 + 1j)})
    found = frame_of(nested)
    assert found["input[0][0]"] == found["output[0]"] == (3.0, 7.0, "int64")
    assert found["output[1][0]"] == (0.0, 1.0, "bool")
    assert found["output[1][1]"] == (None, None, "None")
    assert found["output[2].a"] == (None, None, "str, no tensor")
    assert found["output[2].b"][0] == pytest.approx(math.sqrt(2))
    assert frame_of(torch.zeros(0))["output"] == (None, None, "float32, empty")
    assert frame_of(torch.eye(2).to_sparse())["output"] == (None, None, "float32, not dense")
    assert frame_of(torch.tensor([1e300, 1e-300], dtype=torch.float64))["output"] == (1e-300, 1e300, "float64")
    assert frame_of(torch.tensor([2.0, 4.0]).to(torch.float8_e4m3fn))["output"] == (2.0, 4.0, "float8_e4m3fn")


def test_masks_may_be_infinite():
    """Inputs by keyword are shown, and are no reason to end; what comes out is."""
    mask = torch.tensor([0.0, -math.inf])
    model = nn.Module()
    model.forward = lambda x, mask: x
    watch = DebugUnderflowOverflow(model)
    model(X, mask=mask)
    assert readings(watch.frames[-1])["input.mask"] == (0.0, math.inf, "float32")
    with pytest.raises(ValueError, match=r"output\.mask"):
        frame_of(mask=mask)


@pytest.mark.parametrize("kept", [1, 3, 100])
def test_how_many_frames_are_kept(log, kept):
    model = Model(Logarithm())
    watch = DebugUnderflowOverflow(model, max_frames_to_save=kept)
    with pytest.raises(ValueError, match="Logarithm"):
        model(X)
    assert [frame.module for frame in watch.frames] == [name.format("Logarithm") for name in EIGHT[:5]][-kept:]
    assert f"last {min(kept, 5)} forward" in log.text


@pytest.mark.parametrize("kept", [0, -1])
def test_a_report_needs_a_frame(kept):
    with pytest.raises(ValueError, match=f"max_frames_to_save={kept}"):
        DebugUnderflowOverflow(nn.Linear(1, 1), kept)


def test_batches_are_traced(log):
    """Each pass of those batches is reported as it goes by; nothing in them ends the run, in others it does."""
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


def test_ending_after_a_batch():
    model = Model(SOUND)
    DebugUnderflowOverflow(model, abort_after_batch_num=1)
    model(X)
    with pytest.raises(ValueError, match=r"batch 1 is done.*abort_after_batch_num=1"):
        model(X)


@pytest.mark.parametrize("how", ["remove", "with"])
def test_it_can_be_taken_off(how):
    model = Model(Logarithm())
    if how == "with":
        with DebugUnderflowOverflow(model) as watch:
            pass
    else:
        watch = DebugUnderflowOverflow(model)
        watch.remove()
    watch.remove()
    assert not any(module._forward_hooks for module in model.modules())
    assert model(X)["logits"].isnan().any()
    assert not watch.frames


def test_a_shared_module_is_looked_at_once_a_pass():
    """Under the first of its names. The reference reports it twice."""
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    watch = DebugUnderflowOverflow(model)
    model(X)
    assert [frame.module for frame in watch.frames] == [
        "0, Linear",
        "1, Tanh",
        "0, Linear",
        "the whole model, Sequential",
    ]


def test_a_model_that_is_watched_can_be_copied_and_pickled():
    """As checkpoints of whole models do; the copy is watched by a copy."""
    model = Model(SOUND)
    watch = DebugUnderflowOverflow(model)
    read = pickle.loads(pickle.dumps(model))
    read(X)
    assert watch.batch_number == 0


def test_training_is_not_disturbed():
    """Gradients and random numbers are those of a model without the hooks."""
    found = []
    for watched in (False, True):
        model = Model(nn.Dropout(0.5))
        if watched:
            DebugUnderflowOverflow(model)
        torch.manual_seed(2)
        model(X)["loss"].backward()
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(left, right) for left, right in zip(*found, strict=True))
