"""Training in several processes."""

from dataclasses import dataclass, field
from typing import Any

from .enums import FSDPOption

DDP_BACKENDS = ["nccl", "gloo", "mpi", "xccl", "hccl", "cncl", "mccl"]
"""Backends of torch.distributed that can be asked for."""


@dataclass(init=False, repr=False, eq=False)
class DistributedArguments:
    """The fields of `transformers.TrainingArguments` about DDP, FSDP and DeepSpeed."""

    ddp_find_unused_parameters: bool | None = field(
        default=None,
        metadata={
            "help": "Let DDP look for parameters that got no gradient; costs time each step.",
            "becomes": "`DDPStrategy(find_unused_parameters=)`",
        },
    )
    ddp_bucket_cap_mb: int | None = field(
        default=None,
        metadata={
            "help": "Size of DDP's buckets of gradients in MiB; unset is torch's default.",
            "becomes": "`DDPStrategy(bucket_cap_mb=)`",
        },
    )
    ddp_broadcast_buffers: bool | None = field(
        default=None,
        metadata={
            "help": "Let DDP copy buffers from the first process before each forward pass.",
            "becomes": "`DDPStrategy(broadcast_buffers=)`",
        },
    )
    ddp_backend: str | None = field(
        default=None,
        metadata={
            "help": "How processes talk to each other; unset is 'nccl' on CUDA and 'gloo' on the CPU.",
            "becomes": "`DDPStrategy(process_group_backend=)`",
            "choices": DDP_BACKENDS,
        },
    )
    ddp_timeout: int = field(
        default=1800,
        metadata={
            "help": "Seconds after which processes stop waiting for one that does not answer.",
            "becomes": "`DDPStrategy(timeout=)`",
        },
    )
    fsdp: list[FSDPOption] | str | None = field(
        default=None,
        metadata={
            "help": "Shard the model over processes with FSDP: words such as 'full_shard auto_wrap'.",
            "becomes": "`Trainer(strategy=)`: `FSDPStrategy`, or `ModelParallelStrategy` with version 2",
        },
    )
    fsdp_config: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Settings of FSDP: a dict, or the path of a JSON file.",
            "value_name": "JSON|FILE",
            "becomes": "options of that strategy",
        },
    )
    deepspeed: dict | str | None = field(
        default=None,
        metadata={
            "help": "Settings of DeepSpeed: a dict, or the path of a JSON file.",
            "value_name": "JSON|FILE",
            "becomes": "`Trainer(strategy=)`: `DeepSpeedStrategy`",
        },
    )


@dataclass(init=False, repr=False, eq=False)
class LaterDistributedArguments:
    """The field about DDP that versions after 5.3.0 added."""

    ddp_static_graph: bool | None = field(
        default=None,
        metadata={
            "help": "Promise DDP that each step uses the same parameters in the same way, so that it can do less.",
            "becomes": "`DDPStrategy(static_graph=)`",
        },
    )
