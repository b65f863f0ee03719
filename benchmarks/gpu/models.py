"""A GPT of the shape of GPT-2, in torch alone, and rows of tokens for it."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Shape:
    """The numbers of a GPT; the defaults are those of GPT-2 with 124 million parameters."""

    vocabulary: int = 50304
    length: int = 1024
    width: int = 768
    layers: int = 12
    heads: int = 12


TINY = Shape(vocabulary=64, length=32, width=32, layers=2, heads=2)
SMALL = Shape(vocabulary=512, length=256, width=256, layers=4, heads=4)


class Block(nn.Module):
    """Attention and a perceptron, each normalized before."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the next hidden states, of shape (batch, length, width)."""
        batch, length, width = hidden.shape
        parts = self.attention(self.before_attention(hidden)).view(
            batch, length, 3, self.heads, width // self.heads
        )
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.mlp(self.before_mlp(hidden))


class Gpt(nn.Module):
    """A decoder whose head is the table of its tokens.

    Args:
        shape: see there.
    """

    _no_split_modules = ["Block"]
    supports_gradient_checkpointing = True

    def __init__(self, shape: Shape = TINY):
        super().__init__()
        self.tokens, self.positions = (
            nn.Embedding(shape.vocabulary, shape.width),
            nn.Embedding(shape.length, shape.width),
        )
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.checkpointing = False
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict | None = None
    ) -> None:
        """Compute blocks again in the backward pass."""
        self.checkpointing = True

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the cross-entropy of the next tokens, for ids of shape (batch, length)."""
        hidden = self.tokens(input_ids) + self.positions.weight[: input_ids.shape[1]]
        for block in self.blocks:
            hidden = (
                checkpoint(block, hidden, use_reentrant=False)
                if self.checkpointing
                else block(hidden)
            )
        logits = nn.functional.linear(self.norm(hidden), self.tokens.weight)
        return {
            "loss": nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            )
        }


def token_rows(count: int, shape: Shape) -> list[dict[str, torch.Tensor]]:
    """Return rows of random tokens, which are their own labels."""
    ids = torch.randint(
        shape.vocabulary, (count, shape.length), generator=torch.Generator().manual_seed(0)
    )
    return [{"input_ids": row, "labels": row} for row in ids]
