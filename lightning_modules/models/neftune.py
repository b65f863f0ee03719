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

    Adds uniform noise within `noise_alpha / sqrt(length * dim)` to each input embedding of a model
    in training mode: Jain et al. (arXiv:2310.05914), algorithm 1.

    Args:
        model: the model itself, not wrapped; `get_input_embeddings()` returns a module whose output
            has the shape (batch, length, dim).
        noise_alpha: strength of the noise, at least 0; 5 to 15 in the paper.

    Returns:
        A handle: `handle.remove()` removes the noise, and so does the end of a `with` block.

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
    if not module.training:
        return output
    # In fp32 as in the reference, and on the CPU, so that reading it does not synchronise with the
    # device.
    size = torch.tensor(output.size(1) * output.size(2), device="cpu")
    bound = (noise_alpha / torch.sqrt(size)).item()
    return output + torch.zeros_like(output).uniform_(-bound, bound)
