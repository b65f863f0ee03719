"""Bytes that a device sends in a step, by collective.

What a ring sends of a tensor of M bytes over n devices is the least possible: (n - 1) / n M for an
all-gather or a reduce-scatter, and twice that for an all-reduce (Patarasuk and Yuan, "Bandwidth
optimal all-reduce algorithms for clusters of workstations", Journal of Parallel and Distributed
Computing 69, 2009).
"""

from __future__ import annotations

from dataclasses import dataclass

from .job import Job

_OF_A_RING = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}


@dataclass(frozen=True, kw_only=True)
class Collective:
    """Equal exchanges of a step."""

    kind: str
    """`all-reduce`, `all-gather` or `reduce-scatter`."""
    what: str
    """The exchanged tensors."""
    bytes: float
    """Of whole tensors: the result of an all-gather, the input of a reduce-scatter; all of a
    step together.
    """
    group: int
    """Devices that take part."""

    @property
    def sent(self) -> float:
        """Bytes that one device sends."""
        return _OF_A_RING[self.kind] * (self.group - 1) / self.group * self.bytes


def traffic(job: Job) -> tuple[Collective, ...]:
    """Return all exchanges of a step that grow with model or batch; single numbers, such as
    losses, are left out.
    """
    collectives = _fsdp(job) if job.sharded else _ddp(job)
    if job.tp > 1:
        collectives.append(_tensor_parallel(job))
    return tuple(
        collective for collective in collectives if collective.bytes > 0 and collective.group > 1
    )


def _ddp(job: Job) -> list[Collective]:
    exchanges = job.accumulation if job.sync_each_batch else 1
    size = exchanges * job.number_format.weights * job.own_parameters
    return [Collective(kind="all-reduce", what="gradients", bytes=size, group=job.data_parallel)]


def _fsdp(job: Job) -> list[Collective]:
    """Weights are gathered in each micro-batch, gradients are reduced in the last one (or each)."""
    whole = job.number_format.compute * job.own_parameters
    layers = job.number_format.compute * job.model.in_layers / job.tp  # the root stays gathered
    backward = layers if job.fsdp == "full_shard" else 0.0
    reductions = job.accumulation if job.sync_each_batch else 1
    sizes = [
        ("all-gather", "parameters, forward", job.accumulation * whole),
        ("all-gather", "parameters, backward", job.accumulation * backward),
        ("reduce-scatter", "gradients", reductions * whole),
    ]
    return [
        Collective(kind=kind, what=what, bytes=size, group=job.shards) for kind, what, size in sizes
    ]


def _tensor_parallel(job: Job) -> Collective:
    """Shoeybi et al., "Megatron-LM" (arXiv:1909.08053): two all-reduces forward and two backward in
    each layer.

    torch reduces backward for each linear layer that reads the same input: for query, key and
    value, and for both projections of a gated MLP.
    """
    readers = 5 if job.model.gated else 4
    forward = 4 if job.checkpointing else 2
    of_tokens = job.tokens * job.model.hidden * job.number_format.compute
    exchanges = (forward + readers) * job.model.layers + 2  # two for the embedding and the head
    size = job.accumulation * of_tokens * exchanges
    return Collective(kind="all-reduce", what="activations", bytes=size, group=job.tp)
