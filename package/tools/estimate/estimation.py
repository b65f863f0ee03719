"""Estimates of memory and traffic for a job, and the comparison of strategies."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
        """Whether the memory fits; a tenth is reserved for driver, kernels and fragmentation."""
        return self.memory.total <= 0.9 * self.job.gpu_memory

    @property
    def sent(self) -> float:
        """Bytes that a device sends to others in a step."""
        return sum(collective.sent for collective in self.traffic)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: bytes and counts."""
        job = dataclasses.asdict(self.job)
        model = job.pop("model")
        del model["tensors"]

        communication = []
        for collective in self.traffic:
            communication.append({**dataclasses.asdict(collective), "sent": collective.sent})
        return {
            "strategy": self.job.strategy,
            "model": {"parameters": self.job.model.parameters, **model},
            "job": job,
            "memory": {**dataclasses.asdict(self.memory), "total": self.memory.total},
            "fits": self.fits,
            "communication": communication,
            "sent": self.sent,
        }


def estimate(job: Job) -> Estimate:
    """Estimate the memory of a training on each device, and what a device sends in a step."""
    return Estimate(job=job, memory=memory(job), traffic=traffic(job))


def compare(job: Job) -> list[Estimate]:
    """Estimate a training with each strategy that is possible on its devices.

    Each one is estimated with and without gradient checkpointing. The number of samples in a step
    is the same for all of them: there are fewer groups of devices under tensor parallelism, so they
    have micro-batches of the same size in more accumulation steps.

    Args:
        job: the training; its `fsdp` and `checkpointing` are not used, and its `tp` only to count
            the samples of a step. Its sequences are shared as it says.

    Raises:
        ValueError: no strategy is possible with these shared sequences.
    """
    estimates = []
    for strategy in _strategies(job):
        batch, accumulation = _divide_step(job, strategy.tp)
        for checkpointing in (False, True):
            try:
                changed = replace(
                    job,
                    fsdp=strategy.fsdp,
                    tp=strategy.tp,
                    checkpointing=checkpointing,
                    batch=batch,
                    accumulation=accumulation,
                )
            except ValueError:
                # `tp` does not divide a dimension of the model, or sequences are shared by devices
                # that do not shard it.
                continue
            estimates.append(estimate(changed))
    if not estimates:
        raise ValueError(
            f"cp={job.cp}, sp={job.sp}: no strategy is possible on gpus={job.gpus} devices."
        )
    return estimates


def _divide_step(job: Job, tp: int) -> tuple[int, int]:
    """Return the micro-batch and the accumulation steps for the samples in a step of a job.

    Args:
        job: the training.
        tp: number of devices that share each layer, and therefore each micro-batch.
    """
    sequences = max(job.batch * job.accumulation * tp // job.tp, 1)
    batch = min(job.batch, sequences)
    while sequences % batch:
        batch -= 1
    return batch, sequences // batch


def best(estimates: list[Estimate]) -> Estimate | None:
    """Return the simplest strategy that fits; None if none fits.

    Of equally simple strategies it is the one that sends the least. From simple to complex:
    nothing is sharded (DDP); parameters, gradients and states are; the same two with gradient
    checkpointing; layers are shared, without and with checkpointing.
    """
    fitting = [candidate for candidate in estimates if candidate.fits]
    return min(fitting, key=_complexity, default=None)


def _complexity(candidate: Estimate) -> tuple[bool, bool, bool, float]:
    job = candidate.job
    return job.tp > 1, job.checkpointing, job.sharded, candidate.sent


class _Strategy(NamedTuple):
    """How the devices share the model, see `Job`."""

    fsdp: str | None = None
    tp: int = 1


def _strategies(job: Job) -> list[_Strategy]:
    """Return the strategies that are possible on the devices of a job."""
    if job.gpus == 1:
        return [_Strategy()]
    # Devices that share layers are in one machine, which usually has 8.
    tp = min(8, job.gpus)
    fsdp_between_machines = "full_shard" if job.gpus > tp else None
    return [
        _Strategy(),
        _Strategy(fsdp="shard_grad_op"),
        _Strategy(fsdp="full_shard"),
        _Strategy(fsdp=fsdp_between_machines, tp=tp),
    ]
