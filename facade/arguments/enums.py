"""The named choices of the Trainer API; each member equals the text a user may write instead."""

from enum import Enum

from ...lightning_modules.common.enums import ExplicitEnum
from ...lightning_modules.common.enums import OptimizerNames as OptimizerNames
from ...lightning_modules.common.enums import SchedulerType as SchedulerType


class IntervalStrategy(ExplicitEnum):
    """Name when to log or to evaluate: never, at every n-th step, or after each epoch.

    Works like `transformers.IntervalStrategy`. A member equals its text: `IntervalStrategy.STEPS ==
    "steps"`.
    """

    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"


class SaveStrategy(ExplicitEnum):
    """Name when to write a checkpoint: never, by steps, after each epoch, or on a new best metric.

    Works like `transformers.trainer_utils.SaveStrategy`.
    """

    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"
    BEST = "best"


class HubStrategy(ExplicitEnum):
    """Name what is uploaded to the Hub, and when.

    Works like `transformers.trainer_utils.HubStrategy`. `END` uploads the model at the end;
    `EVERY_SAVE` also at each checkpoint; `CHECKPOINT` uploads the newest checkpoint beside it, in
    the folder `last-checkpoint`; `ALL_CHECKPOINTS` uploads all of them.
    """

    END = "end"
    EVERY_SAVE = "every_save"
    CHECKPOINT = "checkpoint"
    ALL_CHECKPOINTS = "all_checkpoints"


class ParallelMode(Enum):
    """Name how the processes of a training are arranged: the value of `args.parallel_mode`.

    Works like `transformers.training_args.ParallelMode`, of which `NOT_PARALLEL` (one process),
    `DISTRIBUTED` (several) and `TPU` occur here.
    """

    NOT_PARALLEL = "not_parallel"
    NOT_DISTRIBUTED = "not_distributed"
    DISTRIBUTED = "distributed"
    SAGEMAKER_MODEL_PARALLEL = "sagemaker_model_parallel"
    SAGEMAKER_DATA_PARALLEL = "sagemaker_data_parallel"
    TPU = "tpu"


class DebugOption(ExplicitEnum):
    """Name what can be watched while training: the words of the argument `debug`.

    Works like `transformers.debug_utils.DebugOption`. `UNDERFLOW_OVERFLOW` attaches a
    `DebugUnderflowOverflow` to the model; `TPU_METRICS_DEBUG` prints the metrics of torch_xla after
    evaluations.
    """

    UNDERFLOW_OVERFLOW = "underflow_overflow"
    TPU_METRICS_DEBUG = "tpu_metrics_debug"


class FSDPOption(ExplicitEnum):
    """Name the words that the argument `fsdp` is made of.

    Works like `transformers.trainer_utils.FSDPOption`. The first five say what is sharded,
    `OFFLOAD` keeps it in host memory, `AUTO_WRAP` shards each layer separately.
    """

    FULL_SHARD = "full_shard"
    SHARD_GRAD_OP = "shard_grad_op"
    NO_SHARD = "no_shard"
    HYBRID_SHARD = "hybrid_shard"
    HYBRID_SHARD_ZERO2 = "hybrid_shard_zero2"
    OFFLOAD = "offload"
    AUTO_WRAP = "auto_wrap"


class HPSearchBackend(ExplicitEnum):
    """Name the library that runs a hyperparameter search.

    Works like `transformers.trainer_utils.HPSearchBackend`. `OPTUNA` and `RAY` are supported.
    """

    OPTUNA = "optuna"
    RAY = "ray"
    WANDB = "wandb"
