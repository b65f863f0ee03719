"""Names a user writes as text: schedules and optimizers, with an error that helps when one is misspelt.

This module imports nothing but the standard library, so that arguments can be built before torch is loaded.
"""

import difflib
from collections.abc import Iterable
from enum import Enum
from typing import Any

__all__ = ["ExplicitEnum", "OptimizerNames", "SchedulerType", "did_you_mean"]


def did_you_mean(value: object, choices: Iterable[object]) -> str:
    """Return " Did you mean 'x'?" for the choice nearest to `value`, or an empty text where none is near.

    Args:
        value: What was written; upper and lower case are taken as equal. A choice that begins with it is the nearest.
        choices: What could have been written.
    """
    written, names = str(value).lower(), [str(choice) for choice in choices]
    begun = [name for name in names if len(written) > 2 and name.startswith(written)]
    near = begun or difflib.get_close_matches(written, names, n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


class ExplicitEnum(str, Enum):
    """As `transformers.utils.ExplicitEnum`, but an unknown value is answered with the nearest valid one too.

    A member equals its text: `SchedulerType.LINEAR == "linear"`.

    Raises:
        ValueError: On look-up of a value that no member has; names the value and all valid ones.
    """

    @classmethod
    def _missing_(cls, value: object) -> Any:
        valid = [member.value for member in cls]
        raise ValueError(
            f"{value!r} is not a valid {cls.__name__}.{did_you_mean(value, valid)} Valid values: {', '.join(valid)}."
        )


class SchedulerType(ExplicitEnum):
    """As `transformers.SchedulerType`: the learning-rate schedules by name."""

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
    """As `transformers.training_args.OptimizerNames`: every optimizer that can be asked for by name.

    Many of them are in libraries that are not among the dependencies: when one is made, and its library is not there,
    the error says what to install.
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
