"""Numbers that depend on the version of transformers that is followed, on both sides of each
switch.
"""

import math

import pytest
import torch

from helpers.trainer.tiny_trainings import Tiny, make_trainer, points, trained_trainer


@pytest.fixture(params=["5.3.0", "5.23.0"])
def later(request, monkeypatch):
    """Return whether the followed version is the later one."""
    monkeypatch.setenv("LIGHTRAINER_FOLLOW", request.param)
    return request.param != "5.3.0"


def test_followed_version_evaluates_the_last_step(tmp_path, later):
    trainer = trained_trainer(tmp_path, max_steps=3, eval_strategy="steps", eval_steps=2)
    assert [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry] == (
        [2, 3] if later else [2]
    )


def test_followed_version_hides_accumulation_in_the_accelerator(tmp_path, later):
    assert make_trainer(
        tmp_path, gradient_accumulation_steps=3
    ).accelerator.gradient_accumulation_steps == (1 if later else 3)


class NotANumberOnce(Tiny):
    """Its first batch has no loss that is a number."""

    calls = 0

    def forward(self, x, labels=None):
        outputs = super().forward(x, labels)
        self.calls += 1
        return {**outputs, "loss": outputs["loss"] * math.nan} if self.calls == 1 else outputs


@pytest.mark.parametrize("filtered", [True, False])
def test_followed_version_evaluates_a_batch_without_a_loss(tmp_path, later, filtered):
    trainer = make_trainer(
        tmp_path, model=NotANumberOnce(), eval_dataset=points(8), logging_nan_inf_filter=filtered
    )
    assert math.isfinite(trainer.evaluate()["eval_loss"]) is (later and filtered)


@pytest.mark.parametrize(
    ("more", "loss_type", "expected"),
    [
        ({}, None, 8),
        ({}, "ForCausalLM", 6),
        ({"shift_labels": torch.tensor([[1, -100, 3, -100]])}, "ForCausalLM", 2),
    ],
)
def test_followed_version_counts_the_items_of_a_step(tmp_path, later, more, loss_type, expected):
    trainer = make_trainer(tmp_path)
    trainer.model.loss_type, trainer.model_accepts_loss_kwargs = loss_type, True
    batch = {"labels": torch.arange(8).reshape(2, 4), **more}
    _, items = trainer.get_batch_samples(iter([batch]), 1, "cpu")
    assert items == (expected if later else 8)
    assert items.dtype == (torch.float32 if later else torch.int64)
