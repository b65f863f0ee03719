"""Diagnostics, flags for scripts to read, and names kept for older scripts."""

from dataclasses import dataclass, field

from .enums import DebugOption


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
