"""The training to estimate: model, devices and strategy; refuse what cannot run."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...lightning_modules.common.suggestions import OptimizerNames, did_you_mean
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
    return [*_numbers(job), *_names(job)] or [*_grid(job), *_combinations(job)]


def _numbers(job: Job) -> list[str]:
    whole = ("gpus", "batch", "sequence", "accumulation", "tp", "cp", "optim_rank", "gpus_per_node")
    values: dict[str, Any] = {name: getattr(job, name) for name in whole}
    wrong = [
        f"{name}={value} has to be a whole number from 1."
        for name, value in values.items()
        if value is not None and (not isinstance(value, int) or value < 1)
    ]
    positive = {name: getattr(job, name) for name in ("gpu_memory", "bandwidth", "node_bandwidth", "flops")}
    return wrong + [
        f"{name}={value:g} has to be above 0."
        for name, value in positive.items()
        if value is not None and not (value > 0 and math.isfinite(value))
    ]


def _names(job: Job) -> list[str]:
    choices: dict[str, tuple[Any, list[Any]]] = {
        "precision": (job.precision, list(PRECISIONS)),
        "optim": (job.optim, [name.value for name in OptimizerNames]),
        "fsdp": (job.fsdp, [None, *SHARDING]),
        "deepspeed": (job.deepspeed, [None, 0, 1, 2, 3]),
        "attention": (job.attention, list(ATTENTIONS)),
        "offload": (next(iter(sorted(job.offload - set(OFFLOADS))), None), [None, *OFFLOADS]),
    }
    return [
        f"{name}={value!r} is not known.{did_you_mean(value, valid)} There are: "
        f"{', '.join(str(one) for one in valid if one is not None)}."
        for name, (value, valid) in choices.items()
        if value not in valid
    ]


def _grid(job: Job) -> list[str]:
    found = []
    if job.gpus % job.local:
        found.append(f"gpus_per_node={job.local} does not divide gpus={job.gpus}.")
    if job.gpus % (job.tp * job.cp):
        product = f"tp={job.tp}" if job.cp == 1 else f"cp={job.cp}" if job.tp == 1 else f"tp={job.tp} times cp={job.cp}"
        found.append(f"{product} does not divide gpus={job.gpus}.")
    if job.tp > 1 and job.model.heads % job.tp:
        found.append(f"tp={job.tp} does not divide the {job.model.heads} attention heads of the model.")
    if job.tp > 1 and job.model.intermediate % job.tp:
        found.append(f"tp={job.tp} does not divide the width of the MLP, {job.model.intermediate}.")
    if job.fsdp is not None and job.fsdp.startswith("hybrid") and job.local % job.tp:
        found.append(
            f"fsdp={job.fsdp} shards within a machine, and tp={job.tp} does not divide its {job.local} devices."
        )
    if job.sequence % (job.cp * (job.tp if job.sequence_parallel else 1)):
        found.append(f"sequence={job.sequence} does not divide by cp={job.cp} (and tp, with sequence_parallel).")
    return found


def _combinations(job: Job) -> list[str]:
    found = []
    if job.fsdp is not None and job.deepspeed is not None:
        found.append("fsdp and deepspeed exclude each other: both shard the model. Leave one out.")
    if job.deepspeed is not None and (job.tp > 1 or job.cp > 1):
        found.append("deepspeed goes with neither tp nor cp here: use fsdp=full_shard in its place.")
    if job.sequence_parallel and job.tp == 1:
        found.append("sequence_parallel shares tokens out over the devices of tp: pass tp too.")
    if job.offload and not (job.fsdp or job.deepspeed):
        found.append("offload needs fsdp or deepspeed: nothing else keeps states in host memory.")
    if job.fsdp == "no_shard" and job.offload:
        found.append("offload with fsdp=no_shard: nothing is sharded, so torch offloads nothing. Use full_shard.")
    if job.deepspeed == 0 and job.offload:
        found.append("offload needs deepspeed=1 or more: stage 0 shards nothing.")
    if "parameters" in job.offload and job.deepspeed in (1, 2):
        found.append(f"offload=parameters needs deepspeed=3: in stage {job.deepspeed} every device has all of them.")
    if job.node_bandwidth is not None and job.bandwidth is None:
        found.append("node_bandwidth needs bandwidth too, that within a machine.")
    return found
