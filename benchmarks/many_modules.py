"""The time of a training step beyond that of a bare loop, as `step_overhead`, for a model of 450
modules.

150 blocks of a linear layer of width 8 and a LayerNorm, 602 parameters: walking them takes a
millisecond, so that what walks a model at every step shows here. The goal is 1.1 of what the
reference takes beyond the bare loop: both walk it.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, default_collate

from .common import LIBRARIES, Figure, interleaved
from .steps import Steps, bare_loop, show, trainer_loop

BATCH, WIDTH = 4, 8
STEPS = Steps(80, skipped=20)
ROUNDS = 9


class Block(nn.Module):
    """A linear layer and its norm."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return outputs of the shape of `x`."""
        return x + self.norm(self.linear(x))


class ManyModules(nn.Module):
    """150 blocks and a linear layer."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(150))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the squared error, for `x` of shape (batch, 8)."""
        for block in self.blocks:
            x = block(x)
        return {"loss": nn.functional.mse_loss(self.head(x).squeeze(-1), labels)}


def dataset(count: int) -> list[dict[str, torch.Tensor]]:
    features = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(0))
    return [{"x": x, "labels": x.sum()} for x in features]


def bare(items: list) -> list[float]:
    torch.manual_seed(0)
    loader = DataLoader(items, batch_size=BATCH, shuffle=True, collate_fn=default_collate)
    return bare_loop(ManyModules().train(), loader, STEPS)


def main() -> list[Figure]:
    torch.set_num_threads(1)
    items = dataset(STEPS.all * BATCH)
    candidates = {"bare": lambda: bare(items)}
    options = {"model": ManyModules, "per_device_train_batch_size": BATCH}
    candidates |= {
        name: lambda name=name: trainer_loop(name, items, STEPS, **options) for name in LIBRARIES
    }
    return show(
        "many_modules",
        interleaved(ROUNDS, candidates),
        "a step of 450 modules, beyond a bare loop",
        1.1,
    )


if __name__ == "__main__":
    main()
