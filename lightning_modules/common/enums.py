"""Enumerations of schedules and optimizers, and the base class of all enumerations.

Imports only the standard library, so that arguments can be built before torch is imported.
"""

from enum import Enum
from typing import Any

from .suggestions import did_you_mean


class ExplicitEnum(str, Enum):
    """Base of string enumerations, whose members equal their value: `SchedulerType.LINEAR ==
    "linear"`.

    Works like `transformers.utils.ExplicitEnum`, but its error suggests the nearest valid value.

    Raises:
        ValueError: a value is invalid. The message lists the valid values.
    """

    @classmethod
    def _missing_(cls, value: object) -> Any:
        valid = [member.value for member in cls]
        raise ValueError(
            f"{value!r} is not a valid {cls.__name__}.{did_you_mean(value, valid)} Valid values: "
            f"{', '.join(valid)}."
        )


class SchedulerType(ExplicitEnum):
    """Names of learning rate schedules, the values of `lr_scheduler_type`.

    Works like `transformers.SchedulerType`.
    """

    LINEAR = "linear"
    COSINE = "cosine"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    POLYNOMIAL = "polynomial"
    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"
    INVERSE_SQRT = "inverse_sqrt"
    REDUCE_ON_PLATEAU = "reduce_lr_on_plateau"
    COSINE_WITH_MIN_LR = "cosine_with_min_lr"
    COSINE_WARMUP_WITH_MIN_LR = "cosine_warmup_with_min_lr"
    WARMUP_STABLE_DECAY = "warmup_stable_decay"


class OptimizerNames(ExplicitEnum):
    """Names of optimizers, the values of `optim`.

    Works like `transformers.training_args.OptimizerNames`.

    Many need optional libraries. If one is missing, the error says what to install.
    """

    ADAMW_TORCH = "adamw_torch"
    ADAMW_TORCH_FUSED = "adamw_torch_fused"
    ADAMW_TORCH_XLA = "adamw_torch_xla"
    ADAMW_TORCH_NPU_FUSED = "adamw_torch_npu_fused"
    ADAMW_APEX_FUSED = "adamw_apex_fused"
    ADAFACTOR = "adafactor"
    ADAMW_ANYPRECISION = "adamw_anyprecision"
    ADAMW_TORCH_4BIT = "adamw_torch_4bit"
    ADAMW_TORCH_8BIT = "adamw_torch_8bit"
    ADEMAMIX = "ademamix"
    SGD = "sgd"
    ADAGRAD = "adagrad"
    ADAMW_BNB = "adamw_bnb_8bit"
    ADAMW_8BIT = "adamw_8bit"
    ADEMAMIX_8BIT = "ademamix_8bit"
    LION_8BIT = "lion_8bit"
    LION = "lion_32bit"
    PAGED_ADAMW = "paged_adamw_32bit"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    PAGED_ADEMAMIX = "paged_ademamix_32bit"
    PAGED_ADEMAMIX_8BIT = "paged_ademamix_8bit"
    PAGED_LION = "paged_lion_32bit"
    PAGED_LION_8BIT = "paged_lion_8bit"
    RMSPROP = "rmsprop"
    RMSPROP_BNB = "rmsprop_bnb"
    RMSPROP_8BIT = "rmsprop_bnb_8bit"
    RMSPROP_32BIT = "rmsprop_bnb_32bit"
    GALORE_ADAMW = "galore_adamw"
    GALORE_ADAMW_8BIT = "galore_adamw_8bit"
    GALORE_ADAFACTOR = "galore_adafactor"
    GALORE_ADAMW_LAYERWISE = "galore_adamw_layerwise"
    GALORE_ADAMW_8BIT_LAYERWISE = "galore_adamw_8bit_layerwise"
    GALORE_ADAFACTOR_LAYERWISE = "galore_adafactor_layerwise"
    LOMO = "lomo"
    ADALOMO = "adalomo"
    GROKADAMW = "grokadamw"
    SCHEDULE_FREE_RADAM = "schedule_free_radam"
    SCHEDULE_FREE_ADAMW = "schedule_free_adamw"
    SCHEDULE_FREE_SGD = "schedule_free_sgd"
    APOLLO_ADAMW = "apollo_adamw"
    APOLLO_ADAMW_LAYERWISE = "apollo_adamw_layerwise"
    STABLE_ADAMW = "stable_adamw"


MUON = "torch.optim.Muon"
"""Import path with which Muon trains matrices, and AdamW all other parameters."""


def optimizer_name(value: str) -> str:
    """Return the name of an optimizer: a value of `OptimizerNames` or an import path.

    Raises:
        ValueError: the value is neither. The message lists the valid names.
    """
    is_path = isinstance(value, str) and "." in value
    if is_path:
        return value
    return OptimizerNames(value).value
