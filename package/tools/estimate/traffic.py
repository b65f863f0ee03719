"""Bytes that a device sends in a step, by collective.

What a ring sends of a tensor of M bytes over n devices is the least possible: (n - 1) / n M for an all-gather or a
reduce-scatter, and twice that for an all-reduce (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", Journal of Parallel and Distributed Computing 69, 2009).
"""

from __future__ import annotations

from dataclasses import dataclass

from .device_memory import gradient_width, own_parameters, shards_parameters, weight_width
from .job import Job

_OF_A_RING = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}


@dataclass(frozen=True, kw_only=True)
class Collective:
    """Equal exchanges of a step."""

    kind: str
    """`all-reduce`, `all-gather`, `reduce-scatter`; `send`, to a neighbour; `copy`, between device and host."""
    what: str
    """The exchanged tensors."""
    bytes: float
    """Of whole tensors: the result of an all-gather, the input of a reduce-scatter; all of a step together."""
    group: int
    """Devices that take part."""
    across: bool = False
    """True if they span several machines."""

    @property
    def sent(self) -> float:
        """Bytes that one device sends."""
        if self.kind not in _OF_A_RING:
            return self.bytes
        return _OF_A_RING[self.kind] * (self.group - 1) / self.group * self.bytes


def traffic(job: Job) -> tuple[Collective, ...]:
    """Return all exchanges of a step that grow with model or batch; single numbers, such as losses, are left out."""
    found = [*_of_gradients_and_weights(job), *_of_tensor_parallel(job), *_of_context_parallel(job), *_of_host(job)]
    return tuple(one for one in found if one.bytes > 0 and (one.group > 1 or one.kind == "copy"))


def _of_gradients_and_weights(job: Job) -> list[Collective]:
    if job.deepspeed is not None:
        return _deepspeed(job)
    if shards_parameters(job):
        return _fsdp(job)
    times = job.accumulation if job.sync_each_batch else 1
    return [_exchange(job, "all-reduce", "gradients", times * gradient_width(job) * own_parameters(job))]


def _exchange(job: Job, kind: str, what: str, size: float, group: int | None = None) -> Collective:
    members = job.data_parallel if group is None else group
    # Devices of one tensor parallel group are neighbours, so the group of data parallel ones spans tp times as many.
    return Collective(kind=kind, what=what, bytes=size, group=members, across=members * job.tp > job.local)


def _fsdp(job: Job) -> list[Collective]:
    """Weights are gathered in each micro-batch, gradients are reduced in the last one (or each)."""
    width, own, micro = job.number_format.compute, own_parameters(job), job.accumulation
    layers, reductions = job.model.in_layers / job.tp, micro if job.sync_each_batch else 1
    again = layers if job.fsdp in ("full_shard", "hybrid_shard") else 0  # the root stays gathered
    found = [
        _exchange(job, "all-gather", "parameters, forward", micro * width * own, job.shards),
        _exchange(job, "all-gather", "parameters, backward", micro * width * again, job.shards),
        _exchange(job, "reduce-scatter", "gradients", reductions * width * own, job.shards),
    ]
    if job.copies > 1:
        size = reductions * width * own / job.shards
        found.append(
            Collective(kind="all-reduce", what="gradients", bytes=size, group=job.copies, across=job.nodes > 1)
        )
    return found


def _deepspeed(job: Job) -> list[Collective]:
    """Rajbhandari et al., "ZeRO" (arXiv:1910.02054), section 7."""
    stage, width, own, micro = job.deepspeed or 0, gradient_width(job), own_parameters(job), job.accumulation
    if stage == 0:
        return [_exchange(job, "all-reduce", "gradients", width * own)]
    reductions = micro if stage >= 2 else 1
    found = [_exchange(job, "reduce-scatter", "gradients", reductions * width * own)]
    if stage < 3:
        return [*found, _exchange(job, "all-gather", "parameters, after the step", weight_width(job) * own)]
    return [
        _exchange(job, "all-gather", "parameters, forward", micro * weight_width(job) * own),
        _exchange(job, "all-gather", "parameters, backward", micro * weight_width(job) * own),
        *found,
    ]


def _of_tensor_parallel(job: Job) -> list[Collective]:
    """Shoeybi et al., "Megatron-LM" (arXiv:1909.08053): two all-reduces forward and two backward in each layer.

    torch reduces backward for each linear layer that reads the same input: for query, key and value, and for both
    projections of a gated MLP. Sequence parallelism is that of Korthikanti et al. (arXiv:2205.05198), section 4.2.
    """
    if job.tp == 1:
        return []
    of_tokens = job.tokens * job.model.hidden * job.number_format.compute
    readers = (1 if job.model.fused_projection else 3) + (2 if job.model.gated else 1)
    backward = 2 if job.sequence_parallel else readers
    passes = (4 if job.checkpointing else 2) + backward  # forward, forward again, backward
    size = job.accumulation * of_tokens * (passes * job.model.layers + 2)  # two for the embedding and the head
    across = job.tp > job.local
    if not job.sequence_parallel:
        return [Collective(kind="all-reduce", what="activations", bytes=size, group=job.tp, across=across)]
    return [
        Collective(kind=kind, what="activations", bytes=size, group=job.tp, across=across)
        for kind in ("all-gather", "reduce-scatter")
    ]


def _of_context_parallel(job: Job) -> list[Collective]:
    """Liu et al., "Ring Attention" (arXiv:2310.01889): keys and values go round; backward, their gradients too."""
    if job.cp == 1:
        return []
    block = 2 * job.tokens * job.model.key_size / job.tp * job.number_format.compute
    rounds = 4 if job.checkpointing else 3  # forward once, backward with the gradients, and forward again
    size = job.accumulation * job.model.layers * rounds * (job.cp - 1) * block
    return [
        Collective(kind="send", what="keys and values", bytes=size, group=job.cp, across=job.cp * job.tp > job.local)
    ]


def _of_host(job: Job) -> list[Collective]:
    """Return the copies between device and host: gradients down, parameters up."""
    if not job.offload:
        return []
    part = own_parameters(job) / job.shards
    down, up = gradient_width(job) * part, weight_width(job) * part
    if job.fsdp or "parameters" in job.offload:  # for every gathering
        up *= job.accumulation * (1 if job.fsdp in ("shard_grad_op", "hybrid_shard_zero2") else 2)
    found = {"gradients, to the host": down if job.fsdp or "optimizer" in job.offload else 0.0}
    found["parameters, to the device"] = up
    return [Collective(kind="copy", what=what, bytes=size, group=1) for what, size in found.items()]
