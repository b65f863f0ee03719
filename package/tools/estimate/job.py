"""The training to estimate: model, devices and strategy; refuse what cannot run."""

from __future__ import annotations

from dataclasses import dataclass

from .shapes import ModelShape

GIB = 2**30


@dataclass(frozen=True)
class Precision:
    """Bytes of numbers."""

    weights: int
    """Of a weight as the optimizer sees it, of its gradient, and of what is like it in the
    optimizer's state.
    """
    compute: int
    """Of a number in the matrix products."""


PRECISIONS = {
    "fp32": Precision(4, 4),
    "bf16-mixed": Precision(4, 2),
    "fp16": Precision(4, 2),
    "bf16-true": Precision(2, 2),
}
"""`fp16` and `bf16-mixed` are the arguments `fp16` and `bf16`; `bf16-true` is a model loaded in
bfloat16.
"""

SHARDING = ("full_shard", "shard_grad_op", "no_shard")
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
    tp: int = 1
    """Devices that share each layer."""
    checkpointing: bool = False
    """Activations of a layer are computed again in the backward pass."""
    attention: str = "flash"
    """`flash`, which never holds the scores of all pairs of tokens (also torch's SDPA), or
    `eager`, which does.
    """
    sync_each_batch: bool = False
    """Gradients are exchanged in each micro-batch instead of once a step."""

    def __post_init__(self) -> None:
        problems = []
        for name, number in {
            "gpus": self.gpus,
            "heads": self.model.heads,
            "kv_heads": self.model.kv_heads,
            "intermediate": self.model.intermediate,
        }.items():
            if number % self.tp:
                problems.append(f"tp={self.tp} does not divide {name}={number}.")
        if problems:
            raise ValueError(" ".join(problems))

    @property
    def number_format(self) -> Precision:
        """The bytes of the precision."""
        return PRECISIONS[self.precision]

    @property
    def data_parallel(self) -> int:
        """Groups of devices that see different samples, over which gradients are averaged."""
        return self.gpus // self.tp

    @property
    def sharded(self) -> bool:
        """Return whether FSDP shards parameters, gradients and optimizer states."""
        return self.fsdp not in (None, "no_shard")

    @property
    def shards(self) -> int:
        """Devices that weights, gradients and states are sharded over."""
        return self.data_parallel if self.sharded else 1

    @property
    def own_parameters(self) -> float:
        """Parameters of a whole model, or of this device's part of each layer."""
        return self.model.parameters / self.tp

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.batch * self.sequence

    @property
    def strategy(self) -> str:
        """Return the name of the strategy."""
        parts = []
        if self.sharded:
            parts.append(f"FSDP {self.fsdp}")
        elif self.data_parallel > 1:
            parts.append("DDP")
        elif self.tp == 1:
            parts.append("single device")
        if self.tp > 1:
            parts.append(f"TP {self.tp}")
        if self.checkpointing:
            parts.append("checkpointing")
        return ", ".join(parts)
