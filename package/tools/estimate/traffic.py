"""Bytes that a device sends in a step, by collective.

For a tensor of M bytes on n devices, a ring sends the least possible: (n - 1) / n M for an
all-gather or a reduce-scatter, and twice that for an all-reduce (Patarasuk and Yuan, "Bandwidth
optimal all-reduce algorithms for clusters of workstations", Journal of Parallel and Distributed
Computing 69, 2009).
"""

from __future__ import annotations

from dataclasses import dataclass

from .job import Job
from .memory import exchanged_bytes, key_value_bytes

_RING_PASSES = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}


@dataclass(frozen=True, kw_only=True)
class Collective:
    """All exchanges of one kind in a step."""

    kind: str
    """`all-reduce`, `all-gather`, `reduce-scatter` or `all-to-all`."""
    what: str
    """The exchanged tensors."""
    bytes: float
    """Bytes of the unsharded tensors: outputs of all-gathers, inputs of reduce-scatters and
    all-to-alls.
    """
    group: int
    """Number of devices that take part."""

    @property
    def sent(self) -> float:
        """Bytes that one device sends."""
        share = (self.group - 1) / self.group
        return _RING_PASSES[self.kind] * share * self.bytes


def traffic(job: Job) -> tuple[Collective, ...]:
    """Return the exchanges of a step, except those of single numbers, such as losses."""
    collectives = _fsdp(job) if job.sharded else _ddp(job)
    if job.tp > 1:
        collectives.append(_tensor_parallel(job))
    if job.cp > 1:
        collectives += _context_parallel(job)
    if job.sp > 1:
        collectives.append(_sequence_parallel(job))

    needed = []
    for collective in collectives:
        if collective.bytes > 0 and collective.group > 1:
            needed.append(collective)
    return tuple(needed)


def _ddp(job: Job) -> list[Collective]:
    """Return the exchange of gradients."""
    exchanges = job.accumulation if job.sync_each_batch else 1
    size = exchanges * job.number_format.weights * job.own_parameters
    return [Collective(kind="all-reduce", what="gradients", bytes=size, group=job.data_parallel)]


def _fsdp(job: Job) -> list[Collective]:
    """Return the exchanges of parameters and gradients."""
    model_bytes = job.number_format.compute * job.own_parameters
    forward = Collective(
        kind="all-gather",
        what="parameters, forward",
        bytes=job.accumulation * model_bytes,
        group=job.shards,
    )

    # The root stays gathered until the backward pass.
    backward_bytes = 0.0
    if job.fsdp == "full_shard":
        backward_bytes = job.number_format.compute * job.model.in_layers / job.tp
    backward = Collective(
        kind="all-gather",
        what="parameters, backward",
        bytes=job.accumulation * backward_bytes,
        group=job.shards,
    )

    reductions = job.accumulation if job.sync_each_batch else 1
    gradients = Collective(
        kind="reduce-scatter",
        what="gradients",
        bytes=reductions * model_bytes,
        group=job.shards,
    )
    return [forward, backward, gradients]


def _tensor_parallel(job: Job) -> Collective:
    """Return the exchanges of activations and their gradients.

    Each layer has two all-reduces in the forward pass (Shoeybi et al., "Megatron-LM",
    arXiv:1909.08053). In the backward pass torch has one for each linear layer that reads a shared
    input: query, key and value, and one or two projections of the MLP.
    """
    backward = 5 if job.model.gated else 4
    # With checkpointing the forward pass of a layer runs twice.
    forward = 4 if job.checkpointing else 2
    # Two more are those of the embedding and the head.
    exchanges = (forward + backward) * job.model.layers + 2
    activation_bytes = job.own_tokens * job.model.hidden * job.number_format.compute
    size = job.accumulation * activation_bytes * exchanges
    return Collective(kind="all-reduce", what="activations", bytes=size, group=job.tp)


def _context_parallel(job: Job) -> list[Collective]:
    """Return the exchanges of keys and values among devices that share sequences.

    The backward pass gathers them again, and sends their gradients back.
    """
    layers = job.accumulation * job.model.layers
    size = layers * key_value_bytes(job)
    passes = _forward_passes(job) + 1
    gathered = Collective(
        kind="all-gather",
        what="keys and values",
        bytes=passes * size,
        group=job.cp,
    )
    gradients = Collective(
        kind="reduce-scatter",
        what="their gradients",
        bytes=size,
        group=job.cp,
    )
    return [gathered, gradients]


def _sequence_parallel(job: Job) -> Collective:
    """Return the exchanges of heads among devices that share sequences.

    Queries, keys and values before attention, and its outputs after it: Jacobs et al., "DeepSpeed
    Ulysses", arXiv:2309.14509, section 3.1. The backward pass reverses them.
    """
    passes = _forward_passes(job) + 1
    layers = job.accumulation * job.model.layers
    size = layers * passes * exchanged_bytes(job)
    return Collective(
        kind="all-to-all",
        what="heads",
        bytes=size,
        group=job.sp,
    )


def _forward_passes(job: Job) -> int:
    """Return how often the forward pass of a layer runs: twice with checkpointing."""
    if job.checkpointing:
        return 2
    return 1
