"""The same frames with the same numbers as the reference's watch, and the same place of the fault."""

import re

import pytest
import torch
from datasets_for_parity import point_data, sentence_data, sentences
from harness import Case, assert_parity, build, run
from models import Classifier, gpt2, t5
from torch import nn

from lightrainer import DebugUnderflowOverflow


class Overflowing(nn.Module):
    """Tuples and tensors only, as the reference looks into nothing else."""

    def __init__(self, growth):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.growth = growth

    def forward(self, x, labels=None):
        x = torch.tanh(self.first(x)) * self.growth
        return (self.head(self.second(x) * self.growth),)


def of_the_reference(model, inputs, capsys, calls=1, **options):
    """Frames as (module, class, [(low, high, name)]) read from what the reference's watch prints, and its error."""
    from transformers.debug_utils import DebugUnderflowOverflow as Theirs

    watch = Theirs(model, **options)
    error = None
    try:
        for _ in range(calls):
            model(**inputs)
    except ValueError as raised:
        error = raised
    printed = capsys.readouterr().out
    kept = printed if error else "\n".join(watch.frames)
    lines = [line for line in kept.splitlines() if line.strip() and "abs min" not in line and "***" not in line]
    frames = []
    for line in lines:
        if re.match(r"\s{17}", line):
            *name, kind = line.split()
            frames.append(("".join(name), kind, []))
        elif frames and re.match(r"\s*\S+\s+\S+ \S+$", line) and "has" not in line:
            low, high, name = line.split()
            frames[-1][2].append((low, high, name))
    return frames, error


def of_ours(model, inputs, calls=1, **options):
    error = None
    with DebugUnderflowOverflow(model, **options) as watch:
        try:
            for _ in range(calls):
                model(**inputs)
        except ValueError as raised:
            error = raised
    frames = []
    for frame in watch.frames:
        name, kind = frame.module.rsplit(", ", 1)
        ranges = {name: found for name, found in frame.ranges.items() if not name.startswith("input.")}
        values = [(f"{low:.2e}", f"{high:.2e}", name) for name, (low, high) in ranges.items()]
        # What the reference does not look into: mappings, and what is in a list or deeper.
        seen = [value for value in values if re.fullmatch(r"[\w]+|input\[\d+\]|output(\[\d+\]){0,2}", value[2])]
        frames.append(("" if name == "the whole model" else name, kind, seen))
    return frames, error


MODELS = {
    "plain module": (Classifier, lambda: {"x": torch.randn(4, 8), "labels": torch.tensor([0, 1, 2, 0])}),
    "gpt2": (gpt2, lambda: {"input_ids": sentences(1)[0]["input_ids"][None]}),
    "t5": (t5, lambda: {"input_ids": sentences(1)[0]["input_ids"][None], "labels": torch.tensor([[3, 4]])}),
    "numbers that stay": (lambda: Overflowing(1.0), lambda: {"x": torch.randn(4, 8)}),
    "numbers that grow": (lambda: Overflowing(1e30), lambda: {"x": torch.randn(4, 8)}),
    "numbers that are too large": (lambda: Overflowing(float("inf")), lambda: {"x": torch.randn(4, 8)}),
}


@pytest.mark.parametrize("kept", [3, 100])
@pytest.mark.parametrize("name", MODELS)
def test_frames(reference, capsys, name, kept):
    make, data = MODELS[name]
    torch.manual_seed(1)
    model, inputs = make(), data()
    model.eval()
    expected, their_error = of_the_reference(model, inputs, capsys, max_frames_to_save=kept)
    torch.manual_seed(1)
    model = make().eval()
    actual, error = of_ours(model, inputs, max_frames_to_save=kept)
    assert (their_error is None) == (error is None) == (name in list(MODELS)[:4])
    assert [frame[:2] for frame in expected] == [frame[:2] for frame in actual]
    assert expected == actual
    assert sum(len(values) for _, _, values in expected) >= 3


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_the_last_batch(reference, capsys, calls):
    make, data = MODELS["numbers that stay"]
    _, their_error = of_the_reference(make(), data(), capsys, calls=calls, abort_after_batch_num=1)
    _, error = of_ours(make(), data(), calls=calls, abort_after_batch_num=1)
    assert (their_error is None) == (error is None) == (calls < 2)


def test_a_watched_training(reference, ours, tmp_path):
    """The same results as in the reference, and as without a watch; nothing is left on the model."""
    case = Case(Classifier, point_data, {"debug": "underflow_overflow", "eval_strategy": "epoch", "bf16": True})
    _, actual = assert_parity(reference, ours, case, tmp_path)
    assert not any(module._forward_hooks for module in actual.trainer.model.modules())


class Growing(nn.Module):
    """Finite in float32, too large for float16."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)
        with torch.no_grad():
            self.first.weight.fill_(300.0)
            self.second.weight.fill_(300.0)

    def forward(self, x, labels=None):
        logits = self.second(self.first(x.abs() + 1.0))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize(("precision", "layer"), [("fp16", "second, Linear"), ("bf16", None), ("do_eval", None)])
def test_a_training_that_overflows(ours, tmp_path, caplog, precision, layer):
    """In float16 alone; the hooks are gone afterwards."""
    asked = {"debug": "underflow_overflow", precision: True, "learning_rate": 1e-6, "max_steps": 2}
    trainer = build(ours, Case(Growing, point_data, asked), tmp_path)
    if layer is None:
        trainer.train()
    else:
        with pytest.raises(ValueError, match=f"inf or NaN in output of {layer}"):
            trainer.train()
        assert "first, Linear" in caplog.text
    assert not any(module._forward_hooks for module in trainer.model.modules())
    assert ("Inf or NaN" in caplog.text) == (layer is not None)


def test_without_the_argument_there_are_no_hooks(ours, tmp_path, monkeypatch):
    """Negative control, and no work when off."""
    monkeypatch.setattr(DebugUnderflowOverflow, "__init__", lambda *_, **__: pytest.fail("it watches"))
    run(ours, Case(Growing, point_data, {"fp16": True, "max_steps": 2}), tmp_path)
    trainer = build(ours, Case(gpt2, sentence_data, {"debug": ["underflow_overflow"]}), tmp_path / "on")
    with pytest.raises(pytest.fail.Exception, match="it watches"):
        trainer.train()
