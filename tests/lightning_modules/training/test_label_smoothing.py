"""The smoothed loss and its gradient are the reference's, bit for bit."""

from types import SimpleNamespace

import pytest
import torch
from transformers.modeling_outputs import CausalLMOutput
from transformers.trainer_pt_utils import LabelSmoother as ReferenceSmoother

from lightrainer.lightning_modules.training.label_smoothing import LabelSmoother


def sample(dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4, 6, 11, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(0, 11, (4, 6), generator=generator)
    labels[0, 2:] = -100
    labels[3] = -100
    return logits, labels


def loss_and_gradient(smoother, logits, labels, **kwargs):
    leaf = logits.detach().clone().requires_grad_()
    loss = smoother({"logits": leaf}, labels, **kwargs)
    loss.backward()
    return loss.detach(), leaf.grad


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("last", [False, True])
def test_loss_equals_reference(epsilon, shift, dtype, last):
    """With and without padding, a shift, and a last axis of one on the labels."""
    logits, labels = sample(dtype)
    if last and not shift:
        labels = labels.unsqueeze(-1)
    loss, gradient = loss_and_gradient(
        LabelSmoother(epsilon=epsilon), logits, labels, shift_labels=shift
    )
    expected, expected_gradient = loss_and_gradient(
        ReferenceSmoother(epsilon), logits, labels, shift_labels=shift
    )
    assert torch.equal(loss, expected)
    assert loss.dtype == expected.dtype
    assert torch.equal(gradient, expected_gradient)


def test_label_smoothing_of_all_output_forms():
    """A dict, a model output, a tuple and an object with `.logits` give the same."""
    logits, labels = sample()
    expected = ReferenceSmoother()({"logits": logits}, labels)
    for output in (
        CausalLMOutput(logits=logits),
        (logits, "more"),
        SimpleNamespace(logits=logits),
    ):
        assert torch.equal(LabelSmoother()(output, labels), expected)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_items_of_the_whole_batch(as_tensor):
    """Two micro-batches divided by the number of labels of both add up to the loss of all, as
    from 5.23 on.
    """
    logits, labels = sample()
    count = int((labels != -100).sum())
    items = torch.tensor(count) if as_tensor else count
    parts = [
        LabelSmoother()({"logits": logits[part]}, labels[part], num_items_in_batch=items)
        for part in (slice(0, 1), slice(1, 4))
    ]
    torch.testing.assert_close(sum(parts), LabelSmoother()({"logits": logits}, labels))


def test_several_labels_per_sample_are_refused():
    """As in the reference, where they do not broadcast."""
    logits = torch.randn(4, 3)
    labels = torch.tensor([[0, 1, 1]] * 4)
    with pytest.raises(ValueError, match=r"one class for each row of logits.*\(4, 3\)"):
        LabelSmoother()({"logits": logits}, labels)
    with pytest.raises(RuntimeError):
        ReferenceSmoother()({"logits": logits}, labels)
