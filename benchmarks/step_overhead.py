"""The time of one training step beyond that of a bare loop: (lightrainer - bare) / (reference -
bare).

A tiny model, so that nearly all of a step is overhead; fused AdamW, clipping, a linear schedule,
one thread. Bare loop, reference and lightrainer take turns in one process. The goal is 0.5.

Each step is timed by the clock on the wall and by the time of the processor, which other programs
disturb less: on a quiet machine the two agree.
"""

import torch
from torch.utils.data import DataLoader, default_collate

from .common import LIBRARIES, Figure, TinyModel, interleaved, tiny_dataset
from .steps import BATCH, Steps, bare_loop, show, trainer_loop

STEPS = Steps(500, skipped=100)
ROUNDS = 15  # many short ones: what disturbs the machine then meets all three alike


def bare(dataset: list) -> list[float]:
    torch.manual_seed(0)
    model = TinyModel().train()
    return bare_loop(
        model,
        DataLoader(dataset, batch_size=BATCH, shuffle=True, collate_fn=default_collate),
        STEPS,
    )


def main() -> list[Figure]:
    torch.set_num_threads(1)
    dataset = tiny_dataset(STEPS.all * BATCH)
    candidates = {"bare": lambda: bare(dataset)}
    candidates |= {name: lambda name=name: trainer_loop(name, dataset, STEPS) for name in LIBRARIES}
    return show(
        "step_overhead",
        interleaved(ROUNDS, candidates),
        "a step of a tiny model, beyond a bare loop",
        0.5,
    )


if __name__ == "__main__":
    main()
