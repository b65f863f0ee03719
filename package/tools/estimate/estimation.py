"""Estimate memory and traffic of a job, and compare strategies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from .job import Job
from .memory import Memory, memory
from .traffic import Collective, traffic


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Memory and traffic of a training."""

    job: Job
    memory: Memory
    traffic: tuple[Collective, ...]

    @property
    def fits(self) -> bool:
        """Return whether the memory fits, with a tenth reserved for driver, kernels and
        fragmentation.
        """
        return self.memory.total <= 0.9 * self.job.gpu_memory

    @property
    def sent(self) -> float:
        """Bytes that a device sends to others in a step."""
        return sum(collective.sent for collective in self.traffic)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: bytes and counts."""
        job = dataclasses.asdict(self.job)
        model = job.pop("model")
        del model["tensors"]
        return {
            "strategy": self.job.strategy,
            "model": {"parameters": self.job.model.parameters, **model},
            "job": job,
            "memory": {**dataclasses.asdict(self.memory), "total": self.memory.total},
            "fits": self.fits,
            "communication": [
                {**dataclasses.asdict(one), "sent": one.sent} for one in self.traffic
            ],
            "sent": self.sent,
        }


def estimate(job: Job) -> Estimate:
    """Work out what a training needs on each device, and what it sends in each step."""
    return Estimate(job=job, memory=memory(job), traffic=traffic(job))


def compare(job: Job) -> list[Estimate]:
    """Estimate a training under each strategy that its devices allow, with and without gradient
    checkpointing.

    The number of samples in a step is the same under all of them: tensor parallel groups, of which
    there are fewer, take micro-batches of the same size in more accumulation steps.

    Args:
        job: its `fsdp` and `checkpointing` are not read; `tp` is the one of its batch.
    """
    estimates = []
    for changes in _strategies(job):
        batch, accumulation = _parts_of_step(job, changes.get("tp", 1))
        for checkpointing in (False, True):
            changed = {
                "fsdp": None,
                "tp": 1,
                **changes,
                "checkpointing": checkpointing,
                "batch": batch,
                "accumulation": accumulation,
            }
            try:
                estimates.append(estimate(replace(job, **changed)))
            except ValueError:  # the devices do not divide the heads
                continue
    return estimates


def _parts_of_step(job: Job, tp: int) -> tuple[int, int]:
    """Return micro-batch and accumulation with which a step has the samples of a job.

    Args:
        job: the training.
        tp: devices that share each layer, and so a micro-batch.
    """
    sequences = max(job.batch * job.accumulation * tp // job.tp, 1)
    sizes = range(1, job.batch + 1)
    batch = max(size for size in sizes if sequences % size == 0)
    return batch, sequences // batch


def best(estimates: list[Estimate]) -> Estimate | None:
    """Return the simplest strategy that fits, of equally simple ones that which sends the least;
    None where none fits.

    From simple to costly: nothing is sharded (DDP); parameters, gradients and states are; the same
    two with gradient checkpointing; layers are shared, without checkpointing and with it.
    """
    fitting = [one for one in estimates if one.fits]
    return min(fitting, key=_cost, default=None)


def _cost(one: Estimate) -> tuple[bool, bool, bool, float]:
    return one.job.tp > 1, one.job.checkpointing, one.job.sharded, one.sent


def _strategies(job: Job) -> Iterator[dict[str, Any]]:
    yield {}
    if job.gpus == 1:
        return
    yield {"fsdp": "shard_grad_op"}
    yield {"fsdp": "full_shard"}
    tp = min(8, job.gpus)  # devices of a machine
    yield {"tp": tp, "fsdp": "full_shard" if job.gpus > tp else None}
