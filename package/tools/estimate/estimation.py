"""Estimate memory and traffic of a job, and compare strategies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from .device_memory import Memory, memory
from .job import Job
from .traffic import Collective, traffic


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Memory and traffic of a training."""

    job: Job
    memory: Memory
    traffic: tuple[Collective, ...]

    @property
    def fits(self) -> bool:
        """Return whether the memory fits, with a tenth reserved for driver, kernels and fragmentation."""
        return self.memory.total <= 0.9 * self.job.gpu_memory

    @property
    def sent(self) -> float:
        """Bytes that a device sends to others in a step."""
        return sum(one.sent for one in self.traffic if one.kind != "copy")

    @property
    def copied(self) -> float:
        """Bytes that go between a device and its host in a step."""
        return sum(one.sent for one in self.traffic if one.kind == "copy")

    @property
    def sending_seconds(self) -> float | None:
        """Time that the exchanges take one after the other; copies to the host are not among them."""
        job = self.job
        if job.bandwidth is None:
            return None
        between = job.node_bandwidth or job.bandwidth
        return sum(one.sent / (between if one.across else job.bandwidth) for one in self.traffic if one.kind != "copy")

    @property
    def computing_seconds(self) -> float | None:
        """Time that the matrix products take."""
        return None if self.job.flops is None else operations(self.job) / self.job.flops

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: bytes, seconds and counts."""
        job = dataclasses.asdict(self.job)
        model = job.pop("model")
        del model["tensors"]
        offload = sorted(self.job.offload)
        return {
            "strategy": self.job.strategy,
            "model": {"parameters": self.job.model.parameters, **model},
            "job": {**job, "offload": offload, "gpus_per_node": self.job.local, "nodes": self.job.nodes},
            "memory": {**dataclasses.asdict(self.memory), "total": self.memory.total},
            "fits": self.fits,
            "communication": [{**dataclasses.asdict(one), "sent": one.sent} for one in self.traffic],
            "sent": self.sent,
            "copied": self.copied,
            "sending_seconds": self.sending_seconds,
            "computing_seconds": self.computing_seconds,
        }


def estimate(job: Job) -> Estimate:
    """Work out what a training needs on each device, and what it sends in each step."""
    return Estimate(job=job, memory=memory(job), traffic=traffic(job))


def operations(job: Job) -> float:
    """Floating point operations of a device in a step.

    6 for each parameter and token, and 12 hidden numbers for each pair of tokens and layer (Chowdhery et al., "PaLM",
    arXiv:2204.02311, appendix B); with checkpointing the forward third comes twice.
    """
    model = job.model
    of_a_token = 6 * model.active_parameters + 12 * model.layers * model.query_size * job.sequence
    return job.accumulation * job.tokens * of_a_token * (4 / 3 if job.checkpointing else 1) / job.tp


_BOTH = frozenset({"optimizer", "parameters"})


@dataclass(frozen=True)
class Choice:
    """All strategies that were compared, and the best of them."""

    estimates: tuple[Estimate, ...]
    best: Estimate | None
    """The recommended one, see `compare`; None where none fits."""

    @property
    def reason(self) -> str:
        """Return the reason for the best choice, a sentence; empty where none fits."""
        return "" if self.best is None else _REASONS[_rung(self.best)]


def compare(job: Job) -> Choice:
    """Estimate a training under every strategy that its devices allow.

    The number of samples in a step is the same under all of them, as long as it divides: with fewer groups of devices
    that see different samples, each has more of them.

    Of those that fit, the best is on the lowest rung: nothing is sharded (DDP); states, gradients or weights are
    sharded; the same two with gradient checkpointing; layers or sequences are shared within a machine, without
    checkpointing and with it; copies to the host. Of several on a rung it is the one that copies the least, then the
    one that sends the least: bytes, or time, where speeds are known.

    Args:
        job: its `fsdp`, `deepspeed`, `offload`, `tp`, `cp` and `checkpointing` are not read.
    """
    plain = replace(
        job, fsdp=None, deepspeed=None, offload=frozenset(), tp=1, cp=1, sequence_parallel=False, checkpointing=False
    )
    estimates = tuple(
        estimate(one)
        for changes in _strategies(job)
        for checkpointing in (False, True)
        if (one := _possible(plain, job, {**changes, "checkpointing": checkpointing})) is not None
    )
    fitting = [one for one in estimates if one.fits]
    return Choice(estimates, min(fitting, key=_cost) if fitting else None)


_REASONS = (
    "Everything fits on a device, so nothing has to be sharded.",
    "With DDP it does not fit; of the ways to shard that do it sends the least.",
    "Without gradient checkpointing nothing fits; with it everything fits on a device.",
    "Without gradient checkpointing nothing fits, nor with DDP; of the ways to shard that do it sends the least.",
    "Sharding and gradient checkpointing are not enough; of the ways to share layers or sequences it sends the least.",
    "Only with gradient checkpointing and shared layers or sequences it fits; of these ways it sends the least.",
    "The memory of the devices is not enough; of the ways to use that of the host it copies the least.",
)
"""The reason for a choice, by its rung."""


def _rung(one: Estimate) -> int:
    """Return the rung of a strategy, from 0: a higher one is only chosen where none below fits."""
    job = one.job
    if job.offload:
        return 6
    if job.tp > 1 or job.cp > 1:
        return 4 + job.checkpointing
    return 2 * job.checkpointing + bool(job.fsdp or job.deepspeed)


def _cost(one: Estimate) -> tuple[int, float, bool, float]:
    sent = one.sent if one.sending_seconds is None else one.sending_seconds
    return _rung(one), one.copied, one.job.checkpointing, sent


def _strategies(job: Job) -> Iterator[dict[str, Any]]:
    yield {}
    if job.gpus == 1:
        return
    for fsdp in ("shard_grad_op", "full_shard", *(("hybrid_shard",) if job.nodes > 1 else ())):
        yield {"fsdp": fsdp}
    for stage in (1, 2, 3):
        yield {"deepspeed": stage}
    yield from _in_a_machine(job)
    yield {"fsdp": "full_shard", "offload": frozenset({"parameters"})}
    yield {"deepspeed": 2, "offload": frozenset({"optimizer"})}
    yield {"deepspeed": 3, "offload": _BOTH}


def _in_a_machine(job: Job) -> Iterator[dict[str, Any]]:
    """Tensor and context parallelism over the devices of a machine, the rest shards the weights."""
    if job.local == 1:
        return
    rest = {"fsdp": "full_shard"} if job.gpus > job.local else {}
    yield {"tp": job.local, **rest}
    yield {"tp": job.local, "sequence_parallel": True, **rest}
    yield {"cp": job.local, "fsdp": "full_shard"}


def _possible(plain: Job, job: Job, changes: dict[str, Any]) -> Job | None:
    """Return the job under a strategy; None where its numbers do not divide."""
    spread = changes.get("tp", 1) * changes.get("cp", 1)
    was = job.tp * job.cp
    samples = plain.batch * spread
    batch = samples // was if samples % was == 0 else samples
    try:
        return replace(plain, **changes, batch=max(1, batch))
    except ValueError:
        return None
