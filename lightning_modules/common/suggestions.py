"""Enumerations of schedules and optimizers, and suggestions for misspelt names.

This module imports nothing but the standard library, so that arguments can be built before torch is loaded.
"""

import difflib
import re
from collections.abc import Iterable
from enum import Enum
from itertools import takewhile
from typing import Any

__all__ = ["ExplicitEnum", "OptimizerNames", "SchedulerType", "did_you_mean", "nearest"]


def did_you_mean(value: object, choices: Iterable[object]) -> str:
    """Return " Did you mean 'x'?" for the choice nearest to `value`, or an empty text where none is near.

    Args:
        value: The text given.
        choices: The valid names.
    """
    near = nearest(value, choices)
    return "" if near is None else f" Did you mean {near!r}?"


def nearest(value: object, choices: Iterable[object]) -> str | None:
    """Return the choice that `value` most likely stands for, None if no choice is near.

    Near are, in this order: a choice that begins with `value`; one that differs by a typo; one that has `value` among
    its words (`padding`, `non_padding`). Typos are searched word by word, so that names with only a common prefix
    (`eval_f1`, `eval_loss`) do not match. Case is ignored.

    Args:
        value: What was written.
        choices: What could have been written; of equally near ones the first is taken.
    """
    written, names = str(value).lower(), [str(choice) for choice in choices]
    if len(written) > _LONGEST:
        return None
    begun = [name for name in names if name.lower() == written or _begins(name.lower(), written)]
    if begun:
        return begun[0]
    misspelt = [name for name in names if _is_slip(written, name.lower())]
    if misspelt:
        return max(misspelt, key=lambda name: _closeness(written, name.lower()))
    return next((name for name in names if _has_words(name.lower(), written)), None)


_LONGEST = 100
"""Letters; longer texts are no names."""
_SHORTEST = 3
"""Letters; shorter texts are part of too many names."""
_LIKE_A_WORD, _LIKE_A_NAME = 0.66, 0.85
"""Least similarity: one letter in three of a word may be wrong; names with different words have to be almost equal."""
_LEAST_SHARE = 1 / 3
"""Least share of a name's letters that the words of `value` must cover."""
_SEPARATORS = re.compile(r"[\W_]+")


def _begins(name: str, start: str) -> bool:
    return len(start) >= _SHORTEST and name.startswith(start)


def _is_slip(written: str, name: str) -> bool:
    words, others = _SEPARATORS.split(written), _SEPARATORS.split(name)
    if len(words) == len(others) and all(map(_are_alike, words, others)):
        return True
    joined, other = "".join(words), "".join(others)  # full_shard, fullshard
    return min(len(joined), len(other)) >= _SHORTEST and _likeness(joined, other) >= _LIKE_A_NAME


def _are_alike(word: str, other: str) -> bool:
    if word == other:
        return True
    if min(len(word), len(other)) < _SHORTEST:
        return False
    shortened = _begins(word, other) or _begins(other, word)  # evaluation, eval
    return shortened or sorted(word) == sorted(other) or _likeness(word, other) >= _LIKE_A_WORD


def _has_words(name: str, written: str) -> bool:
    """Return whether `name` contains all words of `written` in order, and these are a good part of it."""
    rest = iter(_SEPARATORS.split(name))
    enough = len(written) >= max(_SHORTEST, _LEAST_SHARE * len(name))
    return enough and all(word in rest for word in _SEPARATORS.split(written))


def _closeness(written: str, name: str) -> tuple[float, bool, int]:
    """Return a rating of a near name; transposed letters are more likely than replaced ones."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(written, name, strict=False)))
    return _likeness(written, name), sorted(written) == sorted(name), same


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


class ExplicitEnum(str, Enum):
    """As `transformers.utils.ExplicitEnum`, but the error for an unknown value suggests the nearest valid one.

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
    GREEDY = "greedy"

    @property
    def waits_for_metric(self) -> bool:
        """Return whether the schedule is stepped with a metric after each evaluation."""
        return self in (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)


class OptimizerNames(ExplicitEnum):
    """As `transformers.training_args.OptimizerNames`: every optimizer by name.

    Many of them are in optional libraries; if one is missing, the error says what to install.
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
