"""A small GPT: a plain `nn.Module` that knows nothing of the Trainer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention


class Block(nn.Module):
    """One transformer layer: causal self-attention, then a two-layer perceptron, each behind a
    layer norm.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False),
            nn.GELU(),
            nn.Linear(4 * width, width, bias=False),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """`x` of shape (batch, tokens, width) to the same shape; `angles` as from
        `position_angles`.
        """
        x = x + self.dropout(self.attend(self.attention_norm(x), angles))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))

    def attend(self, x: Tensor, angles: Tensor) -> Tensor:
        """Let every token look at itself and at those before it."""
        batch, tokens, width = x.shape
        heads = self.query_key_value(x).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(
            rotate(query, angles), rotate(key, angles), value, is_causal=True
        )
        return self.attention_out(mixed.transpose(1, 2).reshape(batch, tokens, width))


def position_angles(tokens: int, head_width: int) -> Tensor:
    """Return an angle for each position and each pair of numbers of a head: (tokens, head_width
    / 2), in radians.
    """
    speeds = 1000.0 ** -torch.linspace(0, 1, head_width // 2)
    return torch.outer(torch.arange(tokens), speeds)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turn each pair of numbers in `x` by its angle, so that products depend on distances
    (arXiv:2104.09864).
    """
    first, second = x.chunk(2, dim=-1)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


class CodeGPT(nn.Module):
    """A decoder-only transformer with rotary positions.

    All the Trainer asks of a model is a `forward` that takes the columns of the data set by name
    and, when it is given `labels`, returns the loss.

    Args:
        vocab_size: number of tokens in the vocabulary.
        block_size: the longest sequence the model can see, in tokens.
        layers: number of transformer layers.
        width: size of a token's vector; a multiple of `heads`.
        heads: attention heads per layer.
        dropout: share of each layer's output that is dropped in training.
    """

    angles: Tensor

    def __init__(
        self,
        vocab_size: int,
        block_size: int = 128,
        layers: int = 2,
        width: int = 128,
        heads: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.block_size = block_size
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.final_norm = nn.LayerNorm(width)
        self.register_buffer(
            "angles", position_angles(block_size, width // heads), persistent=False
        )
        self.apply(_initialise)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Predict every next token.

        Args:
            input_ids: token numbers of shape (batch, tokens), at most `block_size` tokens.
            labels: the same numbers; the shift by one happens here.

        Returns:
            `logits` of shape (batch, tokens, vocab_size) and, with `labels`, `loss`: the mean cross
            entropy per predicted token, in nats.
        """
        angles = self.angles[: input_ids.shape[1]]
        x = self.token_embedding(input_ids)
        for block in self.blocks:
            x = block(x, angles)
        # The output layer is the token embedding once more, used as a function: one parameter,
        # nothing shared to save.
        logits = linear(self.final_norm(x), self.token_embedding.weight)
        if labels is None:
            return {"logits": logits}
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}

    @torch.no_grad()
    def generate(
        self, input_ids: Tensor, new_tokens: int, temperature: float = 0.8, top_k: int = 40
    ) -> Tensor:
        """Append `new_tokens` sampled tokens to `input_ids` of shape (1, tokens); the model
        should be in eval mode.
        """
        for _ in range(new_tokens):
            logits = self(input_ids[:, -self.block_size :])["logits"][:, -1]
            best, tokens = torch.topk(logits / temperature, top_k)
            choice = torch.multinomial(best.softmax(-1), num_samples=1)
            input_ids = torch.cat([input_ids, tokens.gather(-1, choice)], dim=1)
        return input_ids


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5)
    # Small vectors make the untrained model's guess nearly uniform: its perplexity is about
    # `vocab_size`.
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
