"""Known differences from transformers: where they appear, under which arguments, and why.

docs/user/differences.md and docs/user/migrate.md describe them for users.
"""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from ...lightning_modules.common.versions import is_older
from .differences import CONTENT, FILES, LOGS, METRICS, WEIGHTS, Difference

Facts = dict[str, Any]
"""Training arguments of the run, the `version` of transformers, and the `gradient_norms` of both
sides at the first step.
"""


def _always(facts: Facts) -> bool:
    return True


def _any_values(difference: Difference, facts: Facts) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class KnownDifference:
    """A difference with its reason."""

    name: str
    why: str
    groups: tuple[str, ...]
    """The kinds of values in which it appears."""
    names: tuple[str, ...] = ("*",)
    """Patterns of the names of these values."""
    applies: Callable[[Facts], bool] = _always
    """Returns whether it can occur with these arguments."""
    predicts: Callable[[Difference, Facts], bool] = _any_values
    """Returns whether it predicts the two values."""
    only_in: str | None = None
    """The side that has the value, if the difference is that the other one does not have it."""
    remedy: str = ""
    """How to compare without it."""

    def explains(self, difference: Difference, facts: Facts) -> bool:
        """Return whether this is the reason for a difference."""
        if difference.group not in self.groups or not self.applies(facts):
            return False
        if self.only_in and difference.only_in != self.only_in:
            return False
        if not any(fnmatch(difference.name, pattern) for pattern in self.names):
            return False
        return self.predicts(difference, facts)


_TOLERANCE = 0.02
"""Relative tolerance for a factor of 2 or more, also in half precision."""


def _is_before(version: str, facts: Facts) -> bool:
    """Return whether transformers is older than a version."""
    # The fact is the library with its version, such as "transformers 5.3.0".
    reference_version = str(facts.get("version", "0")).split()[-1]
    return is_older(reference_version, version)


def _accumulation_steps(facts: Facts) -> int:
    return int(facts.get("gradient_accumulation_steps") or 1)


def _accumulates(facts: Facts) -> bool:
    return _accumulation_steps(facts) > 1


def _gradient_is_too_small(facts: Facts) -> bool:
    """Return whether the gradient of transformers is too small by the accumulation steps.

    Both gradients belong to the same weights, and nothing else explains this factor.
    """
    reference, lightrainer = facts.get("gradient_norms") or (None, None)
    if reference is None or lightrainer is None:
        return False
    return math.isclose(_accumulation_steps(facts) * reference, lightrainer, rel_tol=_TOLERANCE)


def _loss_is_a_sum(difference: Difference, facts: Facts) -> bool:
    """Return whether a loss of transformers is too large by the accumulation steps."""
    reference = difference.reference
    lightrainer = difference.lightrainer
    if not isinstance(reference, float) or not isinstance(lightrainer, float):
        return False
    return math.isclose(reference, _accumulation_steps(facts) * lightrainer, rel_tol=_TOLERANCE)


def _is_set(name: str) -> Callable[[Facts], bool]:
    """Return a function that checks whether an argument is set."""
    return lambda facts: bool(facts.get(name))


_NUMBERS = (LOGS, METRICS, WEIGHTS, CONTENT)
_TRAIN_LOSS = ("*train_loss", "*train_loss (*)", "train_results.json *", "all_results.json *")

KNOWN = (
    KnownDifference(
        name="the gradient under accumulation",
        why=(
            "transformers before 5.10 divides the loss by gradient_accumulation_steps twice, so "
            "its gradients are too small by that factor; in lightrainer 4 accumulated batches are "
            "equivalent to one batch of 4 times the size"
        ),
        groups=_NUMBERS,
        applies=lambda facts: (
            _accumulates(facts) and _is_before("5.10", facts) and _gradient_is_too_small(facts)
        ),
        remedy="compare everything else with --gradient_accumulation_steps 1 and a larger batch",
    ),
    KnownDifference(
        name="the logged loss of a mean under accumulation",
        why=(
            "if a model accepts **kwargs and returns a mean, transformers logs the sum over the "
            "accumulated batches, lightrainer the mean"
        ),
        groups=(LOGS, METRICS, CONTENT),
        names=("*step * loss", "*step * loss (*)", *_TRAIN_LOSS),
        applies=_accumulates,
        predicts=_loss_is_a_sum,
    ),
    KnownDifference(
        name="smoothed labels under accumulation",
        why=(
            "transformers takes the mean of the batches' means, lightrainer the mean over all "
            "tokens of a step"
        ),
        groups=_NUMBERS,
        applies=lambda facts: _accumulates(facts) and bool(facts.get("label_smoothing_factor")),
    ),
    KnownDifference(
        name="fp16 on the CPU",
        why=(
            "transformers trains in float32 without a warning, lightrainer in float16 with a loss "
            "scale"
        ),
        groups=_NUMBERS,
        applies=lambda facts: bool(facts.get("fp16") and facts.get("on_cpu")),
        remedy="compare without --fp16, or on a GPU",
    ),
    KnownDifference(
        name="the best model with save_strategy='best'",
        why=(
            "transformers before 5.23 forgets which checkpoint is the best: load_best_model_at_end "
            "loads nothing"
        ),
        groups=(METRICS, WEIGHTS, CONTENT, FILES),
        applies=lambda facts: (
            "best" in str(facts.get("save_strategy"))
            and bool(facts.get("load_best_model_at_end"))
            and _is_before("5.23", facts)
        ),
    ),
    KnownDifference(
        name="train_loss after a resumption",
        why=(
            "transformers before 5.23 divides the losses since the resumption by the number of all "
            "steps"
        ),
        groups=(LOGS, METRICS, CONTENT),
        names=_TRAIN_LOSS,
        applies=lambda facts: (
            bool(facts.get("resume_from_checkpoint")) and _is_before("5.23", facts)
        ),
    ),
    KnownDifference(
        name="train_loss with several processes",
        why=(
            "for the steps since the last log transformers uses the loss of one process, "
            "lightrainer the mean over all processes"
        ),
        groups=(LOGS, METRICS, CONTENT),
        names=_TRAIN_LOSS,
        applies=lambda facts: int(facts.get("world_size") or 1) > 1,
    ),
    KnownDifference(
        name="auto_find_batch_size in mid-training",
        why=(
            "transformers continues with the weights of the failed attempt, lightrainer starts "
            "again from the initial weights"
        ),
        groups=_NUMBERS,
        applies=_is_set("auto_find_batch_size"),
    ),
    KnownDifference(
        name="total_flos with disable_tqdm",
        why="with it, transformers leaves total_flos out of the metrics of train",
        groups=(METRICS, LOGS, CONTENT),
        names=("*total_flos",),
        applies=_is_set("disable_tqdm"),
        only_in="lightrainer",
    ),
    KnownDifference(
        name="special tokens in the configs of a model",
        why=(
            "transformers before 5.23 removes special tokens that the tokenizer does not have, and "
            "further tokens that end a generation"
        ),
        groups=(CONTENT,),
        names=("*config.json *_token_id*",),
        applies=lambda facts: _is_before("5.23", facts),
    ),
    KnownDifference(
        name="files that make checkpoints safe and exact",
        why=(
            "checksums (_manifest.json), and the position in the data, with which a resumed "
            "training gives the same bits"
        ),
        groups=(FILES,),
        names=("*/_manifest.json", "*/data_state_*.pth", "*/scaler.pt"),
        only_in="lightrainer",
    ),
    KnownDifference(
        name="event files of TensorBoard",
        why="their names contain the time; torch writes a second one for the hyperparameters",
        groups=(FILES,),
        names=("*events.out.tfevents.*",),
    ),
    KnownDifference(
        name="model cards",
        why=(
            "lightrainer writes one for any model, with a plot of the losses; transformers only "
            "for a model with a config"
        ),
        groups=(FILES,),
        names=("*README.md", "*loss_curve.svg"),
    ),
)
"""The first one that explains a difference is its reason."""


def find_reason(difference: Difference, facts: Facts) -> KnownDifference | None:
    """Return the reason for a difference; None if the reason is unknown."""
    for known in KNOWN:
        if known.explains(difference, facts):
            return known
    return None
