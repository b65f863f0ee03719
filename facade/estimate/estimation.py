"""Memory, traffic and time of one training, together."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from .job import Job
from .memory import Memory, memory
from .traffic import Collective, traffic


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a training needs."""

    job: Job
    memory: Memory
    traffic: tuple[Collective, ...]

    @property
    def fits(self) -> bool:
        """Whether a device has enough memory; a tenth of it is left to the driver, to kernels and to fragmentation."""
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
        job = {field.name: getattr(self.job, field.name) for field in dataclasses.fields(Job) if field.name != "model"}
        model = {
            field.name: getattr(self.job.model, field.name)
            for field in dataclasses.fields(self.job.model)
            if field.name != "tensors"
        }
        return {
            "strategy": self.job.strategy,
            "model": {"parameters": self.job.model.parameters, **model},
            "job": {
                **job,
                "offload": sorted(self.job.offload),
                "gpus_per_node": self.job.local,
                "nodes": self.job.nodes,
            },
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
