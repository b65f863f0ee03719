"""NEFTune: noise on the input embeddings during training."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


def neftune_hook(model: nn.Module, noise_alpha: float) -> RemovableHandle:
    """Add uniform noise to the input embeddings of a model in training mode.

    Works like `transformers.integrations.neftune.activate_neftune`. The noise lies within
    `noise_alpha / sqrt(length * dim)`: Jain et al. (arXiv:2310.05914), algorithm 1.

    Args:
        model: the model without wrappers; its `get_input_embeddings()` returns a module whose
            output has the shape (batch, length, dim).
        noise_alpha: strength of the noise, at least 0; the paper uses 5 to 15.

    Returns:
        A handle. Its `remove()` removes the noise; as a context manager it does so at the end of
        the block.

    Raises:
        AttributeError: the model has no `get_input_embeddings`.
        ValueError: `noise_alpha` is negative.
    """
    if noise_alpha < 0:
        raise ValueError(
            f"`neftune_noise_alpha` is {noise_alpha}, but the strength of noise cannot be "
            "negative. Pass 0 or more."
        )
    # torch does not declare the method.
    embeddings: nn.Module = cast("Any", model).get_input_embeddings()
    return embeddings.register_forward_hook(partial(_add_noise, noise_alpha))


def _add_noise(
    noise_alpha: float, module: nn.Module, args: tuple[object, ...], output: Tensor
) -> Tensor:
    """Return the output of the embeddings with noise, in training mode."""
    if not module.training:
        return output
    # The bound is computed in float32, as in the reference. It is computed on the CPU, so that
    # `item` does not wait for the device.
    size = torch.tensor(output.size(1) * output.size(2), device="cpu")
    bound = (noise_alpha / torch.sqrt(size)).item()
    return output + torch.zeros_like(output).uniform_(-bound, bound)
