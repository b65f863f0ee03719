"""The time of a training step of a GPT of 6 million parameters, in batches of 4, against a bare
loop.

Nearly all of such a step is the model, so that the trainer may add next to nothing: the goal is
1.02.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, default_collate

from .common import LIBRARIES, Figure, interleaved, medians, report
from .steps import CLOCKS, Steps, bare_loop, trainer_loop

TOKENS, LENGTH, BATCH = 256, 128, 4
STEPS = Steps(12, skipped=2)
ROUNDS = 7


class Gpt(nn.Module):
    """A decoder.

    Args:
        width: numbers for each token.
        layers: how many.
    """

    def __init__(self, width: int = 256, layers: int = 8):
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(
            width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, TOKENS)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the cross-entropy of the next tokens, for ids of shape (batch, length)."""
        length = input_ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.layers(
            self.tokens(input_ids) + self.places.weight[:length], mask=mask, is_causal=True
        )
        logits = self.head(hidden)[:, :-1].flatten(0, 1)
        return {"loss": nn.functional.cross_entropy(logits, labels[:, 1:].flatten())}


def token_rows(count: int, length: int) -> list[dict[str, torch.Tensor]]:
    """Rows of random tokens."""
    ids = torch.randint(TOKENS, (count, length), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in ids]


def bare(rows: list) -> list[float]:
    torch.manual_seed(0)
    loader = DataLoader(rows, batch_size=BATCH, shuffle=True, collate_fn=default_collate)
    return bare_loop(Gpt().train(), loader, STEPS)


def main() -> list[Figure]:
    torch.set_num_threads(1)
    items = token_rows(STEPS.all * BATCH, LENGTH)
    candidates = {"bare": lambda: bare(items)}
    options = {"model": Gpt, "per_device_train_batch_size": BATCH}
    candidates |= {
        name: lambda name=name: trainer_loop(name, items, STEPS, **options) for name in LIBRARIES
    }
    processor = list(CLOCKS).index("processor")
    measured = interleaved(ROUNDS, candidates)
    rounds = {name: [values[processor] * 1e3 for values in each] for name, each in measured.items()}
    step = medians(rounds)
    rows = [
        (f"{name}, one step", f"{value:7.1f} ms, {value / step['bare']:.3f} of the bare loop")
        for name, value in step.items()
    ]
    figures = [
        Figure("a step of a GPT, against a bare loop", step["lightrainer"] / step["bare"], 1.02)
    ]
    return report("gpt_steps", rows, {"milliseconds": step, "rounds": rounds}, figures)


if __name__ == "__main__":
    main()
