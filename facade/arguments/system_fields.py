"""The fields of the training arguments about seeds, devices, data, processes, and what scripts read."""

from dataclasses import dataclass, field
from typing import Any

from .enums import DebugOption, FSDPOption


@dataclass(init=False, repr=False, eq=False)
class SeedArguments:
    """The fields of `transformers.TrainingArguments` that make runs repeatable."""

    full_determinism: bool = field(
        default=False,
        metadata={
            "help": "Use only operations that always give the same bits; slow, for debugging.",
            "becomes": "`enable_full_determinism(seed)` in place of `set_seed(seed)`",
        },
    )
    seed: int = field(
        default=42,
        metadata={
            "help": "Seed of all random numbers, set when training starts.",
            "becomes": "`set_seed(seed)` when the Trainer is made and when `model_init` is called",
        },
    )
    data_seed: int | None = field(
        default=None,
        metadata={
            "help": "Seed of the order of the data; unset takes the one in seed.",
            "becomes": "`build_loader(seed=)`",
        },
    )


@dataclass(init=False, repr=False, eq=False)
class PlatformArguments:
    """The fields of `transformers.TrainingArguments` about devices and how data is dealt out to processes."""

    use_cpu: bool = field(
        default=False,
        metadata={
            "help": "Compute on the CPU although there is an accelerator.",
            "becomes": "`Trainer(accelerator='cpu')`",
        },
    )
    accelerator_config: dict | str | None = field(
        default=None,
        metadata={
            "help": "How batches are dealt out to processes: a dict, or the path of a JSON file.",
            "metavar": "JSON|FILE",
            "becomes": "how samplers and loaders deal out batches",
        },
    )
    parallelism_config: Any | None = field(
        default=None,
        metadata={
            "help": "Sizes of the tensor, context and data parallel groups.",
            "becomes": "`Trainer(strategy=)`: `ModelParallelStrategy`",
        },
    )


SAMPLING_STRATEGIES = ["random", "sequential", "group_by_length", "batch_rebalance"]
"""Orders in which training samples can be drawn."""

START_METHODS = ["fork", "spawn", "forkserver"]
"""Ways in which worker processes can be started."""


@dataclass(init=False, repr=False, eq=False)
class DataArguments:
    """The fields of `transformers.TrainingArguments` about loading data."""

    dataloader_drop_last: bool = field(
        default=False,
        metadata={
            "help": "Leave out the last batch of a pass where it would be a smaller one.",
            "becomes": "`build_loader(drop_last=)`",
        },
    )
    dataloader_num_workers: int = field(
        default=0,
        metadata={
            "help": "Processes that read data ahead; with 0 the training process reads it itself.",
            "becomes": "`DataLoader(num_workers=)`",
        },
    )
    dataloader_pin_memory: bool = field(
        default=True,
        metadata={
            "help": "Put batches into page-locked memory, for quicker copies to a GPU.",
            "becomes": "`DataLoader(pin_memory=)` where there is an accelerator",
        },
    )
    dataloader_persistent_workers: bool = field(
        default=False,
        metadata={
            "help": "Keep the reading processes alive from one pass to the next.",
            "becomes": "`DataLoader(persistent_workers=)`",
        },
    )
    dataloader_prefetch_factor: int | None = field(
        default=None,
        metadata={
            "help": "Batches that each reading process holds ready; unset is torch's default.",
            "becomes": "`DataLoader(prefetch_factor=)`",
        },
    )
    remove_unused_columns: bool = field(
        default=True,
        metadata={
            "help": "Drop dataset columns that the model's forward has no parameter for.",
            "becomes": "columns dropped from a dataset, or by `RemoveColumnsCollator`",
        },
    )
    label_names: list[str] | None = field(
        default=None,
        metadata={
            "help": "Keys of a batch that hold labels; unset is found out from the model.",
            "becomes": "the keys of a batch that `prediction_step` takes as labels",
        },
    )
    train_sampling_strategy: str = field(
        default="random",
        metadata={
            "help": "Order of training samples: 'random', 'sequential', 'group_by_length' for little padding, or "
            "'batch_rebalance' for batches of different sizes that cost all processes the same; its order depends on "
            "the epoch alone, and not on a seed.",
            "becomes": "`build_loader(sampler=)` of the training data",
            "choices": SAMPLING_STRATEGIES,
        },
    )
    length_column_name: str = field(
        default="length",
        metadata={
            "help": "Column with the length of each sample, read for 'group_by_length' and 'batch_rebalance'.",
            "becomes": "`LengthGroupedSampler(lengths=)`, `BatchRebalanceSampler(lengths=)`",
        },
    )


@dataclass(init=False, repr=False, eq=False)
class LaterDataArguments:
    """The fields about loading data that versions after 5.3.0 added."""

    dataloader_multiprocessing_context: str | None = field(
        default=None,
        metadata={
            "help": "How reading processes are started; unset is torch's own way ('fork' on an Apple GPU).",
            "becomes": "`DataLoader(multiprocessing_context=)`",
            "choices": START_METHODS,
        },
    )
    dataloader_in_order: bool = field(
        default=True,
        metadata={
            "help": "Take batches in the order they were asked for; otherwise as soon as a reading process has one.",
            "becomes": "`DataLoader(in_order=)`",
        },
    )


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
            "help": "Shard the model over processes with FSDP: True, or words such as 'full_shard auto_wrap'.",
            "nargs": "?",
            "const": True,
            "becomes": "`Trainer(strategy=)`: `ModelParallelStrategy`, or `FSDPStrategy` with version 1",
        },
    )
    fsdp_config: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Settings of FSDP: a dict, or the path of a JSON file.",
            "metavar": "JSON|FILE",
            "becomes": "options of that strategy",
        },
    )
    deepspeed: dict | str | None = field(
        default=None,
        metadata={
            "help": "Settings of DeepSpeed: a dict, or the path of a JSON file.",
            "metavar": "JSON|FILE",
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


@dataclass(init=False, repr=False, eq=False)
class DiagnosticsArguments:
    """The fields of `transformers.TrainingArguments` for finding faults and measuring memory."""

    debug: str | list[DebugOption] = field(
        default="",
        metadata={
            "help": "Watch for faults: 'underflow_overflow', 'tpu_metrics_debug', or both.",
            "becomes": "a watch over the outputs of all layers",
        },
    )
    skip_memory_metrics: bool = field(
        default=True,
        metadata={
            "help": "Do not measure memory; set to False to find it among the metrics.",
            "becomes": "`MemoryTracker`: `*_mem_*` among the metrics",
        },
    )


@dataclass(init=False, repr=False, eq=False)
class ScriptArguments:
    """The fields of `transformers.TrainingArguments` that scripts read and the Trainer does not."""

    do_train: bool = field(
        default=False, metadata={"help": "For the script: whether to train.", "becomes": "nothing: scripts read it"}
    )
    do_eval: bool = field(
        default=False,
        metadata={
            "help": "For the script: whether to evaluate; on once eval_strategy is not 'no'.",
            "becomes": "nothing: scripts read it",
        },
    )
    do_predict: bool = field(
        default=False,
        metadata={"help": "For the script: whether to predict on test data.", "becomes": "nothing: scripts read it"},
    )
    resume_from_checkpoint: str | None = field(
        default=None,
        metadata={
            "help": "For the script: checkpoint folder to hand to Trainer.train().",
            "becomes": "nothing: scripts hand it to `Trainer.train()`",
        },
    )


@dataclass(init=False, repr=False, eq=False)
class DeprecatedArguments:
    """The fields of `transformers.TrainingArguments` that older scripts pass."""

    warmup_ratio: float | None = field(
        default=None,
        metadata={
            "help": "Deprecated: use warmup_steps, which takes a share below 1 as well.",
            "becomes": "`warmup_steps`",
        },
    )
    logging_dir: str | None = field(
        default=None,
        metadata={
            "help": "Deprecated: set TENSORBOARD_LOGGING_DIR. Folder of TensorBoard logs.",
            "becomes": "`SummaryWriter(log_dir=)`",
        },
    )
    local_rank: int = field(
        default=-1,
        metadata={
            "help": "Deprecated and not read: older launchers pass it to the script.",
            "becomes": "nothing: the launcher's environment variables say it",
        },
    )
