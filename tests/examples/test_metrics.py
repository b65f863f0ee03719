"""The examples of metrics run as they are, offline, and each metric says what it should of a
model that has learned.
"""

import math
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    """The module, imported as Python does for a script in its folder."""
    monkeypatch.syspath_prepend(EXAMPLES)
    random_state = torch.get_rng_state()
    import metrics

    torch.manual_seed(0)
    yield metrics
    torch.set_rng_state(random_state)
    del sys.modules["metrics"]


def test_accuracy_and_f1_of_a_classifier(example):
    metrics = example.classification()
    assert 0.9 < metrics["eval_accuracy"] <= 1
    assert 0.9 < metrics["eval_f1"] <= 1


def test_perplexity_of_a_language_model(example):
    """Better than guessing among the characters that there are, and not the mean over batches."""
    metrics = example.language_modelling()
    assert metrics["eval_perplexity"] == pytest.approx(math.exp(metrics["eval_token_loss"]))
    assert metrics["eval_perplexity"] < len(set(example.TEXT)) / 2
    assert metrics["eval_token_loss"] != pytest.approx(metrics["eval_loss"], abs=1e-4)


def test_bleu_of_a_translation(example):
    assert example.translation()["eval_bleu"] == 1


def test_miou_of_a_segmentation(example):
    assert 0.9 < example.segmentation()["eval_miou"] <= 1
