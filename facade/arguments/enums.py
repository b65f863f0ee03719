"""The named choices of the Trainer API; each member equals the text a user may write instead."""

from enum import Enum

from ...lightning_modules.common.suggestions import ExplicitEnum
from ...lightning_modules.common.suggestions import OptimizerNames as OptimizerNames
from ...lightning_modules.common.suggestions import SchedulerType as SchedulerType


class IntervalStrategy(ExplicitEnum):
    """As `transformers.IntervalStrategy`: when to log or to evaluate."""

    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"


class SaveStrategy(ExplicitEnum):
    """As `transformers.trainer_utils.SaveStrategy`: when to write a checkpoint; "best" is on
    each new best metric.
    """

    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"
    BEST = "best"


class HubStrategy(ExplicitEnum):
    """As `transformers.trainer_utils.HubStrategy`: what is uploaded to the Hub, and when."""

    END = "end"
    EVERY_SAVE = "every_save"
    CHECKPOINT = "checkpoint"
    ALL_CHECKPOINTS = "all_checkpoints"


class ParallelMode(Enum):
    """As `transformers.training_args.ParallelMode`, of which NOT_PARALLEL, DISTRIBUTED and TPU
    occur here.
    """

    NOT_PARALLEL = "not_parallel"
    NOT_DISTRIBUTED = "not_distributed"
    DISTRIBUTED = "distributed"
    SAGEMAKER_MODEL_PARALLEL = "sagemaker_model_parallel"
    SAGEMAKER_DATA_PARALLEL = "sagemaker_data_parallel"
    TPU = "tpu"


class DebugOption(ExplicitEnum):
    """As `transformers.debug_utils.DebugOption`: what can be watched while training."""

    UNDERFLOW_OVERFLOW = "underflow_overflow"
    TPU_METRICS_DEBUG = "tpu_metrics_debug"


class FSDPOption(ExplicitEnum):
    """As `transformers.trainer_utils.FSDPOption`: the words that the argument `fsdp` is made of."""

    FULL_SHARD = "full_shard"
    SHARD_GRAD_OP = "shard_grad_op"
    NO_SHARD = "no_shard"
    HYBRID_SHARD = "hybrid_shard"
    HYBRID_SHARD_ZERO2 = "hybrid_shard_zero2"
    OFFLOAD = "offload"
    AUTO_WRAP = "auto_wrap"


class HPSearchBackend(ExplicitEnum):
    """As `transformers.trainer_utils.HPSearchBackend`: who runs a hyperparameter search."""

    OPTUNA = "optuna"
    RAY = "ray"
    WANDB = "wandb"
