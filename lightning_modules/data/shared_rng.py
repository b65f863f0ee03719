"""What several processes have to agree on although each has random numbers of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Sampler


class SharedOrderSampler(Sampler[int]):
    """The order that process 0 draws from a sampler, on every process, whatever their generators are.

    Each process moves its own generator on as if it were alone. All processes have to iterate together.

    Args:
        sampler: has an attribute `generator`, one on the CPU; None stands for torch's global one.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self._began: torch.Tensor | None = None

    @property
    def seed(self) -> torch.Tensor | None:
        """Where the sampler's own generator stood when the iteration began; None if it draws from the global one.

        Set before an iteration, it gives the order of that one again.
        """
        own = self.sampler.generator
        if own is None:
            return None
        return own.get_state() if self._began is None else self._began

    @seed.setter
    def seed(self, state: torch.Tensor) -> None:
        self.sampler.generator.set_state(state)

    @property
    def next_seed(self) -> torch.Tensor | None:
        """The `seed` of an iteration that would begin now."""
        own = self.sampler.generator
        return None if own is None else own.get_state()

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        own = self.sampler.generator
        state = torch.get_rng_state() if own is None else own.get_state()
        agreed = from_first_process(state)
        self._began = None if own is None else state
        order = list(self.sampler)
        if not torch.equal(state, agreed):
            self.sampler.generator = torch.Generator()
            self.sampler.generator.set_state(agreed)
            order = list(self.sampler)
            self.sampler.generator = own
        return iter(order)


def from_first_process(value: torch.Tensor) -> torch.Tensor:
    """The tensor of process 0, on every process; where there is no process group, this process's own.

    Args:
        value: of the same shape and type everywhere; it is not changed.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return value
    shared = value.to(transport_device(), copy=True)
    dist.broadcast(shared, src=0)
    return shared.to(value.device)


def transport_device() -> torch.device:
    """Where tensors have to be for the process group to carry them: on the GPU with NCCL, else in main memory."""
    nccl = str(dist.get_backend()) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
