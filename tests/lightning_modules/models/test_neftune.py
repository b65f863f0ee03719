"""The noise on the embeddings is the reference's, bit for bit, and goes away again."""

import pytest
import torch
from torch import nn
from transformers.integrations.neftune import activate_neftune

from lightrainer.lightning_modules.models.neftune import neftune_hook


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(13, 6)

    def get_input_embeddings(self):
        return self.table

    def forward(self, tokens):
        return self.table(tokens)


TOKENS = torch.arange(12).view(3, 4)


def noisy(model, activate, tokens=TOKENS):
    activate(model)
    torch.manual_seed(5)
    return model(tokens)


@pytest.mark.parametrize("alpha", [0, 0.1, 5, 15.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_noise_equals_reference(alpha, dtype):
    expected = noisy(Plain().to(dtype), lambda model: activate_neftune(model, alpha))
    actual = noisy(Plain().to(dtype), lambda model: neftune_hook(model, alpha))
    assert torch.equal(actual, expected)
    assert torch.equal(actual, Plain().to(dtype)(TOKENS)) == (alpha == 0)


def test_neftune_adds_no_noise_in_evaluation():
    """Nor is anything drawn from the generator."""
    model = Plain().eval()
    neftune_hook(model, 5)
    state = torch.get_rng_state()
    output = model(TOKENS)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(output, Plain()(TOKENS))


def test_handle_ends_the_noise():
    """By `remove()` and at the end of a `with` block, with nothing left on the module."""
    model, plain = Plain(), Plain()(TOKENS)
    attributes = set(vars(model.table))
    handle = neftune_hook(model, 5)
    assert not torch.equal(model(TOKENS), plain)
    handle.remove()
    assert torch.equal(model(TOKENS), plain)
    with neftune_hook(model, 5):
        assert not torch.equal(model(TOKENS), plain)
    assert torch.equal(model(TOKENS), plain)
    assert set(vars(model.table)) == attributes
