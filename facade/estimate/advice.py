"""All strategies for the same training, and which of them fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from .estimation import Estimate, estimate
from .job import Job

_BOTH = frozenset({"optimizer", "parameters"})


@dataclass(frozen=True)
class Choice:
    """All that were looked at, and the best of them."""

    estimates: tuple[Estimate, ...]
    best: Estimate | None
    """Of those that fit, the one that computes and sends the least; None where none fits."""


def compare(job: Job) -> Choice:
    """Estimate a training under every strategy that its devices allow.

    The number of samples in a step is the same under all of them, as long as it divides: with fewer groups of devices
    that see different samples, each has more of them.

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


def _cost(one: Estimate) -> tuple[bool, bool, float]:
    """Copies to the host cost the most, then computing twice, then traffic: in seconds, where speeds are known."""
    return one.copied > 0, one.job.checkpointing, one.sent if one.sending_seconds is None else one.sending_seconds


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
    """The job under a strategy; None where its numbers do not divide."""
    spread = changes.get("tp", 1) * changes.get("cp", 1)
    was = job.tp * job.cp
    samples = plain.batch * spread
    batch = samples // was if samples % was == 0 else samples
    try:
        return replace(plain, **changes, batch=max(1, batch))
    except ValueError:
        return None
