"""The training to estimate: its model, devices and strategy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .shapes import ModelShape

GIB = 2**30


@dataclass(frozen=True)
class Precision:
    """Bytes of a number."""

    weights: int
    """For weights as the optimizer sees them, their gradients, and states of the same dtype."""
    compute: int
    """For matrix products."""


PRECISIONS = {
    "fp32": Precision(4, 4),
    "bf16-mixed": Precision(4, 2),
    "fp16": Precision(4, 2),
    "bf16-true": Precision(2, 2),
}
"""`fp16` and `bf16-mixed` stand for the arguments `fp16` and `bf16`, `bf16-true` for a model that
was loaded in bfloat16.
"""

SHARDING = ("full_shard", "shard_grad_op", "no_shard")
ATTENTIONS = ("flash", "eager")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training. Numbers are per device unless stated otherwise.

    Raises:
        ValueError: by the constructor, if numbers contradict each other; the message lists all
            contradictions.
    """

    model: ModelShape
    gpus: int = 1
    """Number of all devices."""
    gpu_memory: float = 80 * GIB
    """Memory of a device in bytes."""
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
    """Rank of GaLore and APOLLO."""
    fsdp: str | None = None
    """One of `SHARDING`."""
    tp: int = 1
    """Number of devices that share each layer."""
    cp: int = 1
    """Number of devices that share each sequence, as `cp_size`: keys and values are exchanged."""
    sp: int = 1
    """Number of devices that share each sequence, as `sp_size`: heads are exchanged."""
    checkpointing: bool = False
    """True to compute the activations of layers again in the backward pass."""
    attention: str = "flash"
    """`eager` keeps the scores of all pairs of tokens in memory; `flash`, and torch's SDPA, do
    not.
    """
    sync_each_batch: bool = False
    """True to exchange gradients in each micro-batch instead of once a step."""

    def __post_init__(self) -> None:
        problems = []
        must_be_divisible = {
            "gpus": self.gpus,
            "heads": self.model.heads,
            "kv_heads": self.model.kv_heads,
            "intermediate": self.model.intermediate,
        }
        for name, number in must_be_divisible.items():
            if number % self.tp:
                problems.append(f"tp={self.tp} does not divide {name}={number}.")

        # Devices that share sequences.
        shared = f"cp={self.cp}, sp={self.sp}"
        if self.cp > 1 and self.sp > 1:
            problems.append(f"{shared}: both share sequences. Use one.")
        if self.parts > 1 and self.gpus % (self.tp * self.parts):
            problems.append(f"{shared} and tp={self.tp} do not divide gpus={self.gpus}.")
        if self.sp > 1 and self.model.heads % (self.tp * self.sp):
            problems.append(f"{shared} and tp={self.tp} do not divide heads={self.model.heads}.")
        if self.parts > 1 and not self.sharded:
            problems.append(f"{shared}: the model is sharded then. Use fsdp='full_shard'.")
        if self.parts > 1 and self.attention == "eager":
            problems.append(f"{shared}: only the attention of torch (flash) is shared.")
        if problems:
            raise ValueError(" ".join(problems))

    @property
    def number_format(self) -> Precision:
        """The bytes of a number in this precision."""
        return PRECISIONS[self.precision]

    @property
    def data_parallel(self) -> int:
        """Number of groups of devices that see different samples."""
        return self.gpus // (self.tp * self.parts)

    @property
    def parts(self) -> int:
        """Number of devices that share each sequence."""
        return self.cp * self.sp

    @property
    def copies(self) -> int:
        """Number of devices that have, or share, the same part of each layer."""
        return self.gpus // self.tp

    @property
    def sharded(self) -> bool:
        """Return whether FSDP shards parameters, gradients and optimizer states."""
        return self.fsdp not in (None, "no_shard")

    @property
    def shards(self) -> int:
        """Number of devices over which weights, gradients and states are sharded."""
        return self.copies if self.sharded else 1

    @property
    def own_parameters(self) -> float:
        """Number of parameters of the model, or with `tp` of a device's part of it."""
        return self.model.parameters / self.tp

    @property
    def tokens(self) -> int:
        """Number of tokens in a micro-batch."""
        return self.batch * self.sequence

    @property
    def part_length(self) -> int:
        """Number of tokens of a sequence that a device computes, with padding.

        Sequences that are shared are padded to a multiple of twice their parts.
        """
        if self.parts == 1:
            return self.sequence
        return 2 * math.ceil(self.sequence / (2 * self.parts))

    @property
    def own_tokens(self) -> int:
        """Number of tokens in a micro-batch that a device computes."""
        return self.batch * self.part_length

    @property
    def strategy(self) -> str:
        """The name of the strategy."""
        parts = []
        if self.sharded:
            parts.append(f"FSDP {self.fsdp}")
        elif self.data_parallel > 1:
            parts.append("DDP")
        elif self.tp == 1:
            parts.append("single device")
        if self.tp > 1:
            parts.append(f"TP {self.tp}")
        if self.cp > 1:
            parts.append(f"CP {self.cp}")
        if self.sp > 1:
            parts.append(f"SP {self.sp}")
        if self.checkpointing:
            parts.append("checkpointing")
        return ", ".join(parts)
