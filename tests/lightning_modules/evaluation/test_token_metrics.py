"""The loss for each token is exact, whatever the batches, and the perplexity its exponential."""

import math

import pytest
import torch
from torch.nn import functional

from lightrainer.lightning_modules.evaluation.token_metrics import TokenLoss, TokenPerplexity

SIZES = [(4, 9), (4, 2), (1, 30), (3, 1)]


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(5)
    pairs = []
    for rows, length in SIZES:
        logits = torch.randn(rows, length, 7, generator=generator) * 4
        labels = torch.randint(7, (rows, length), generator=generator)
        labels[torch.rand(rows, length, generator=generator) < 0.3] = -100
        labels[0, 0] = 0
        pairs.append((logits, labels))
    return pairs


def all_at_once(batches):
    logits = torch.cat([logits.flatten(0, 1) for logits, _ in batches]).double()
    labels = torch.cat([labels.flatten() for _, labels in batches])
    return functional.cross_entropy(logits, labels, ignore_index=-100).item()


def test_uneven_batches(batches):
    """Each token counts the same; the mean of the batches' losses, as `eval_loss` has it, is
    another number.
    """
    loss, perplexity = TokenLoss(), TokenPerplexity()
    for batch in batches:
        loss.update(*batch)
        perplexity.update(*batch)
    expected = all_at_once(batches)
    # The losses of the tokens are in single precision, their sum is not.
    assert loss.compute().item() == pytest.approx(expected, rel=1e-5)
    assert perplexity.compute().item() == pytest.approx(math.exp(expected), rel=1e-5)


def test_token_metrics_of_many_small_batches_are_exact():
    """In single precision the sum of many batches would stop growing at some point."""
    logits, labels = torch.zeros(1000, 2), torch.zeros(1000, dtype=torch.long)
    metric, single = TokenLoss(), TokenLoss(dtype=torch.float32)
    for _ in range(300):
        metric.update(logits, labels)
        single.update(logits, labels)
    per_token = functional.cross_entropy(logits, labels, reduction="none").double().mean().item()
    assert metric.compute().item() == pytest.approx(per_token, rel=1e-12)
    assert single.total.dtype is torch.float32
    assert single.compute().item() != pytest.approx(per_token, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_full(dtype):
    logits, labels = torch.tensor([[3.0, 1.0]] * 9).to(dtype), torch.zeros(9, dtype=torch.long)
    metric = TokenLoss()
    metric.update(logits, labels)
    assert metric.compute().item() == pytest.approx(
        functional.cross_entropy(logits.float(), labels).item(), rel=1e-5
    )


def test_labels_that_do_not_count():
    metric = TokenLoss(ignore_index=0)
    metric.update(torch.tensor([[9.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    assert metric.compute().item() == pytest.approx(math.log(2))
    nothing = TokenLoss()
    nothing.update(torch.zeros(2, 3), torch.full((2,), -100))
    assert math.isnan(nothing.compute())
