"""The training to estimate: model, devices and strategy; refuse what cannot run."""

from __future__ import annotations

from dataclasses import dataclass

from .shapes import ModelShape

GIB = 2**30


@dataclass(frozen=True)
class Precision:
    """Bytes of numbers."""

    weights: int
    """Of a weight as the optimizer sees it, of its gradient, and of what is like it in the optimizer's state."""
    compute: int
    """Of a number in the matrix products."""

    @property
    def mixed(self) -> bool:
        """Return whether matrix products use a shorter format than the weights."""
        return self.compute < self.weights


PRECISIONS = {
    "fp32": Precision(4, 4),
    "bf16-mixed": Precision(4, 2),
    "fp16": Precision(4, 2),
    "bf16-true": Precision(2, 2),
}
"""`fp16` and `bf16-mixed` are the arguments `fp16` and `bf16`; `bf16-true` is a model loaded in bfloat16."""

SHARDING = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
OFFLOADS = ("optimizer", "parameters")
ATTENTIONS = ("flash", "eager")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training; everything is per device unless it says otherwise.

    Raises:
        ValueError: on construction, where numbers contradict each other; all of it in one message.
    """

    model: ModelShape
    gpus: int = 1
    """All devices together."""
    gpus_per_node: int | None = None
    """Devices of one machine; by default 8, or all where there are fewer."""
    gpu_memory: float = 80 * GIB
    """Bytes."""
    batch: int = 1
    """Sequences in a micro-batch."""
    sequence: int = 2048
    """Tokens in a sequence."""
    accumulation: int = 1
    """Micro-batches in a step."""
    precision: str = "bf16-mixed"
    """One of `PRECISIONS`."""
    optim: str = "adamw_torch_fused"
    """A value of `OptimizerNames`."""
    optim_rank: int = 128
    """Of GaLore and APOLLO."""
    fsdp: str | None = None
    """One of `SHARDING`."""
    deepspeed: int | None = None
    """The stage of ZeRO."""
    offload: frozenset[str] = frozenset()
    """Parts kept in host memory, of `OFFLOADS`; FSDP offloads all or nothing."""
    tp: int = 1
    """Devices that share each layer."""
    sequence_parallel: bool = False
    """Between the parts of tensor parallel layers, tokens are shared out instead of copied."""
    cp: int = 1
    """Devices that share each sequence."""
    checkpointing: bool = False
    """Activations of a layer are computed again in the backward pass."""
    attention: str = "flash"
    """`flash`, which never holds the scores of all pairs of tokens (also torch's SDPA), or `eager`, which does."""
    sync_each_batch: bool = False
    """Gradients are exchanged in each micro-batch instead of once a step."""
    bandwidth: float | None = None
    """Bytes per second that a device can send within its machine."""
    node_bandwidth: float | None = None
    """Bytes per second that a device can send to other machines; by default `bandwidth`."""
    flops: float | None = None
    """Operations per second that a device reaches in practice."""

    def __post_init__(self) -> None:
        problems = _problems(self)
        if problems:
            raise ValueError(" ".join(problems))

    @property
    def local(self) -> int:
        """Devices of one machine."""
        return self.gpus_per_node or min(8, self.gpus)

    @property
    def nodes(self) -> int:
        """Machines."""
        return max(1, self.gpus // self.local)

    @property
    def number_format(self) -> Precision:
        """The bytes of the precision."""
        return PRECISIONS[self.precision]

    @property
    def replicas(self) -> int:
        """Groups of devices that see different samples."""
        return self.gpus // (self.tp * self.cp)

    @property
    def data_parallel(self) -> int:
        """Devices over which gradients are averaged; those that share a sequence see different tokens of it."""
        return self.gpus // self.tp

    @property
    def sharded(self) -> bool:
        """Return whether FSDP or ZeRO shards anything."""
        return self.fsdp not in (None, "no_shard") or bool(self.deepspeed)

    @property
    def shards(self) -> int:
        """Devices that weights, gradients or states are sharded over."""
        if not self.sharded:
            return 1
        if self.fsdp is not None and self.fsdp.startswith("hybrid"):
            return max(1, min(self.data_parallel, self.local // self.tp))
        return self.data_parallel

    @property
    def copies(self) -> int:
        """Sets of shards, each of which is a whole model."""
        return self.data_parallel // self.shards

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch on one device."""
        return self.batch * self.sequence / self.cp

    @property
    def strategy(self) -> str:
        """Return the name of the strategy."""
        parts = [] if self.gpus // self.tp > 1 or self.sharded else ["single device"] if self.tp == 1 else []
        if self.deepspeed is not None:
            parts = [f"ZeRO-{self.deepspeed}"]
        elif self.fsdp not in (None, "no_shard"):
            parts = [f"FSDP {self.fsdp}"]
        elif self.data_parallel > 1:
            parts = ["DDP"]
        if self.offload:
            what = "all" if self.fsdp else " and ".join(sorted(self.offload))
            parts.append(f"offload {what}")
        parts += [f"TP {self.tp}{' with SP' if self.sequence_parallel else ''}"] if self.tp > 1 else []
        parts += [f"CP {self.cp}"] if self.cp > 1 else []
        parts += ["checkpointing"] if self.checkpointing else []
        return ", ".join(parts)


def _problems(job: Job) -> list[str]:
    """Return the contradictions between the numbers, which would give wrong estimates."""
    hybrid, shards = job.fsdp is not None and job.fsdp.startswith("hybrid"), job.fsdp or job.deepspeed
    sequence_parts = job.cp * (job.tp if job.sequence_parallel else 1)
    checks = {
        f"gpus_per_node={job.local} does not divide gpus={job.gpus}.": job.gpus % job.local,
        f"tp={job.tp} times cp={job.cp} does not divide gpus={job.gpus}.": job.gpus % (job.tp * job.cp),
        f"tp={job.tp} does not divide heads={job.model.heads}.": job.model.heads % job.tp,
        f"tp={job.tp} does not divide intermediate={job.model.intermediate}.": job.model.intermediate % job.tp,
        f"tp={job.tp} does not divide gpus_per_node={job.local}, within which fsdp={job.fsdp} shards.": hybrid
        and job.local % job.tp,
        f"cp (times tp with sequence_parallel) does not divide sequence={job.sequence}.": job.sequence % sequence_parts,
        "fsdp and deepspeed exclude each other: both shard the model. Leave one out.": job.fsdp is not None
        and job.deepspeed is not None,
        "deepspeed goes with neither tp nor cp here: use fsdp=full_shard in its place.": job.deepspeed is not None
        and job.tp * job.cp > 1,
        "sequence_parallel shards tokens over the devices of tp: pass tp too.": job.sequence_parallel and job.tp == 1,
        "offload needs fsdp=full_shard, or deepspeed=1 or more, which shard the states.": job.offload
        and (not shards or job.fsdp == "no_shard"),
        f"offload=parameters needs deepspeed=3: in stage {job.deepspeed} every device has all of them.": (
            "parameters" in job.offload and job.deepspeed in (1, 2)
        ),
        "node_bandwidth needs bandwidth too, that within a machine.": job.node_bandwidth is not None
        and job.bandwidth is None,
    }
    return [problem for problem, is_wrong in checks.items() if is_wrong]
