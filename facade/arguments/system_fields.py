"""The fields of the training arguments about seeds, devices, data, processes, and what scripts
read.
"""

from dataclasses import dataclass
from typing import Any

from .accelerator import AcceleratorConfig, read_accelerator_config
from .argument import SettingsDict, anything, argument, integer, number
from .deepspeed_config import read_deepspeed
from .enums import DebugOption, FSDPOption
from .fsdp_config import FSDP_DEFAULTS, read_fsdp_config, read_fsdp_words
from .parallelism import read_parallelism_config
from .readers import read_debug, read_label_names


@dataclass(init=False, repr=False, eq=False)
class PlatformArguments:
    """The fields of `transformers.TrainingArguments` about seeds, devices, and how processes
    share data.
    """

    full_determinism: bool = argument(
        False, "Use only deterministic operations.", maps_to="`enable_full_determinism(seed)`"
    )
    seed: int = argument(
        42,
        "Random seed, set at the start of training.",
        maps_to="`set_seed(seed)`",
        read=integer(low=0, high=2**32 - 1, remedy=" NumPy takes no other seed."),
    )
    data_seed: int | None = argument(
        None, "Seed of the data order; by default seed.", maps_to="`build_loader(seed=)`"
    )
    use_cpu: bool = argument(
        False,
        "Use the CPU even if there is an accelerator.",
        maps_to="`Trainer(accelerator='cpu')`",
    )
    accelerator_config: SettingsDict | str | None = argument(
        None,
        "How batches are distributed over processes: a dict, or the path of a JSON file.",
        maps_to="how samplers and loaders distribute batches. Not possible: a class in place of an "
        "object",
        metavar="JSON|FILE",
        read=read_accelerator_config,
        none_factory=AcceleratorConfig,
    )
    parallelism_config: Any | None = argument(
        None,
        "Sizes of the tensor, context and data parallel groups.",
        maps_to="`Trainer(strategy=)`: `ModelParallelStrategy`. Not there: tp_size together with "
        "dp_replicate_size",
        read=read_parallelism_config,
    )


SAMPLING_STRATEGIES = [
    "random",
    "sequential",
    "group_by_length",
    "token_budget",
]
"""Orders in which training samples can be drawn."""

START_METHODS = ["fork", "spawn", "forkserver"]
"""Ways in which worker processes can be started."""


@dataclass(init=False, repr=False, eq=False)
class DataArguments:
    """The fields of `transformers.TrainingArguments` about loading data."""

    dataloader_drop_last: bool = argument(
        False,
        "Drop the last batch of an epoch if it is smaller.",
        maps_to="`build_loader(drop_last=)`",
    )
    dataloader_num_workers: int = argument(
        0,
        "Number of worker processes; 0 loads data in the training process.",
        maps_to="`DataLoader(num_workers=)`",
        read=integer(low=0, remedy=" 0 loads data in the training process."),
    )
    dataloader_pin_memory: bool = argument(
        True, "Copy batches into pinned memory.", maps_to="`DataLoader(pin_memory=)`"
    )
    dataloader_persistent_workers: bool = argument(
        False,
        "Keep worker processes between epochs.",
        maps_to="`DataLoader(persistent_workers=)`",
    )
    dataloader_prefetch_factor: int | None = argument(
        None,
        "Batches that each worker prefetches; by default torch's setting.",
        maps_to="`DataLoader(prefetch_factor=)`",
        read=integer(low=1),
    )
    remove_unused_columns: bool = argument(
        True, "Drop columns that forward does not accept.", maps_to="`RemoveColumnsCollator`"
    )
    label_names: list[str] | None = argument(
        None,
        "Keys of labels in a batch; by default derived from the model.",
        maps_to="labels in `prediction_step`",
        read=read_label_names,
    )
    train_sampling_strategy: str = argument(
        "random",
        "Order of training samples: 'random', 'sequential', 'group_by_length' for little padding, "
        "or 'token_budget' for batches of max_tokens_per_batch.",
        maps_to="`build_loader(sampler=)` of the training data",
        choices=SAMPLING_STRATEGIES,
    )
    length_column_name: str = argument(
        "length", "Column with the length of samples.", maps_to="`LengthGroupedSampler(lengths=)`"
    )


@dataclass(init=False, repr=False, eq=False)
class LaterDataArguments:
    """The fields about loading data that versions after 5.3.0 added."""

    dataloader_multiprocessing_context: str | None = argument(
        None,
        "Start method of worker processes; by default torch's ('fork' on an Apple GPU).",
        maps_to="`DataLoader(multiprocessing_context=)`",
        choices=START_METHODS,
    )
    dataloader_in_order: bool = argument(
        True, "Return batches in the order of requests.", maps_to="`DataLoader(in_order=)`"
    )


@dataclass(init=False, repr=False, eq=False)
class OwnDataArguments:
    """The field about batches that the reference does not have."""

    max_tokens_per_batch: int | None = argument(
        None,
        "Most tokens of a training batch of one process, padding counted, with "
        "train_sampling_strategy='token_budget'. per_device_train_batch_size, unless it is the "
        "default, is then its most samples.",
        maps_to="`TokenBudgetSampler(max_tokens=)`",
        read=integer(low=1),
    )


DDP_BACKENDS = ["nccl", "gloo", "mpi", "xccl", "hccl", "cncl", "mccl"]
"""Backends of torch.distributed that can be asked for."""


@dataclass(init=False, repr=False, eq=False)
class DistributedArguments:
    """The fields of `transformers.TrainingArguments` about DDP, FSDP and DeepSpeed."""

    ddp_find_unused_parameters: bool | None = argument(
        None,
        "Let DDP find parameters without a gradient.",
        maps_to="`DDPStrategy(find_unused_parameters=)`",
    )
    ddp_bucket_cap_mb: int | None = argument(
        None,
        "Size of DDP's gradient buckets in MiB; by default torch's setting.",
        maps_to="`DDPStrategy(bucket_cap_mb=)`",
        read=integer(low=1),
    )
    ddp_broadcast_buffers: bool | None = argument(
        None,
        "Broadcast buffers from rank 0 before each forward pass.",
        maps_to="`DDPStrategy(broadcast_buffers=)`",
    )
    ddp_backend: str | None = argument(
        None,
        "Backend of torch.distributed; by default 'nccl' on CUDA and 'gloo' on the CPU.",
        maps_to="`DDPStrategy(process_group_backend=)`",
        choices=DDP_BACKENDS,
    )
    ddp_timeout: int = argument(
        1800,
        "Timeout in seconds of collective operations.",
        maps_to="`DDPStrategy(timeout=)`",
        read=integer(low=1, remedy=" It is a number of seconds."),
    )
    fsdp: list[FSDPOption] | str | None = argument(
        None,
        "Shard the model with FSDP: True, or options such as 'full_shard auto_wrap'.",
        maps_to="`Trainer(strategy=)`: `ModelParallelStrategy`, or `FSDPStrategy` with version 1",
        nargs="?",
        const=True,
        read=read_fsdp_words,
        none_factory=list,
    )
    fsdp_config: dict[str, Any] | str | None = argument(
        None,
        "FSDP settings: a dict, or the path of a JSON file.",
        maps_to="options of that strategy",
        metavar="JSON|FILE",
        read=read_fsdp_config,
        none_factory=FSDP_DEFAULTS.copy,
    )
    deepspeed: SettingsDict | str | None = argument(
        None,
        "DeepSpeed settings: a dict, or the path of a JSON file.",
        maps_to="`Trainer(strategy=)`: `DeepSpeedStrategy`",
        metavar="JSON|FILE",
        read=read_deepspeed,
    )


@dataclass(init=False, repr=False, eq=False)
class LaterDistributedArguments:
    """The field about DDP that versions after 5.3.0 added."""

    ddp_static_graph: bool | None = argument(
        None,
        "Promise DDP that all steps use the same parameters.",
        maps_to="`DDPStrategy(static_graph=)`",
    )


@dataclass(init=False, repr=False, eq=False)
class ScriptArguments:
    """The fields of `transformers.TrainingArguments` for diagnostics, for scripts to read, and
    for older scripts.
    """

    debug: str | list[DebugOption] = argument(
        "",
        "Debug options: 'underflow_overflow', 'tpu_metrics_debug', or both.",
        maps_to="a watch over all layers. Not there: 'tpu_metrics_debug' without torch_xla",
        read=read_debug,
        none_factory=list,
    )
    skip_memory_metrics: bool = argument(
        True, "Do not measure memory for metrics.", maps_to="`MemoryTracker`"
    )
    do_train: bool = argument(
        False, "For the script: whether to train.", maps_to="nothing: scripts read it"
    )
    do_eval: bool = argument(
        False,
        "For the script: whether to evaluate; on with eval_strategy.",
        maps_to="nothing: scripts read it",
    )
    do_predict: bool = argument(
        False,
        "For the script: whether to predict on test data.",
        maps_to="nothing: scripts read it",
    )
    resume_from_checkpoint: str | None = argument(
        None,
        "For the script: the checkpoint for Trainer.train().",
        maps_to="nothing: scripts hand it to `train`",
        read=anything,
    )
    warmup_ratio: float | None = argument(
        None,
        "Deprecated: use warmup_steps with a fraction.",
        maps_to="`warmup_steps`",
        read=number(low=0, remedy=" Pass a number of steps, or a share of all steps below 1."),
    )
    logging_dir: str | None = argument(
        None, "Deprecated: set TENSORBOARD_LOGGING_DIR.", maps_to="`SummaryWriter(log_dir=)`"
    )
    local_rank: int = argument(
        -1, "Deprecated and ignored; older launchers pass it.", maps_to="nothing"
    )
