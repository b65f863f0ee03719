"""A collator with random generators of its own."""

import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

import lightrainer


class OwnDraws:
    """A collator with generators of its own, one of them made when it is first needed, as that of a masking one is."""

    def __init__(self) -> None:
        self.drawing: dict[str, Any] = {"numpy": np.random.default_rng(5), "python": random.Random(6)}
        self.generator: torch.Generator | None = None

    def __call__(self, samples: list[dict[str, Any]]) -> Any:
        if self.generator is None:
            worker = get_worker_info()
            self.generator = torch.Generator().manual_seed(7 + (0 if worker is None else worker.id))
        drawn = (
            torch.rand((), generator=self.generator) + self.drawing["numpy"].random() + self.drawing["python"].random()
        )
        batch = lightrainer.default_data_collator(samples)
        return {**batch, "x": batch["x"] + 0.1 * float(drawn)}
