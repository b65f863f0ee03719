"""Known differences from the reference: the values they show in, the arguments they need, and their
reasons.

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
at the first step.
"""


@dataclass(frozen=True, kw_only=True)
class Known:
    """A difference with a reason."""

    name: str
    why: str
    groups: tuple[str, ...]
    """The kinds of values it shows in."""
    names: tuple[str, ...] = ("*",)
    """Patterns of the names of these values."""
    applies: Callable[[Facts], bool] = lambda facts: True
    """Returns whether it can occur with these arguments."""
    agrees: Callable[[Difference, Facts], bool] = lambda difference, facts: True
    """Returns whether the two values are those that it predicts."""
    only_in: str | None = None
    """The side that alone has the value, if that is the difference."""
    remedy: str = ""
    """A way to compare without it."""

    def covers(self, difference: Difference, facts: Facts) -> bool:
        """Return whether this is the reason for a difference."""
        if difference.group not in self.groups or not self.applies(facts):
            return False
        if self.only_in and difference.only_in != self.only_in:
            return False
        return any(fnmatch(difference.name, pattern) for pattern in self.names) and self.agrees(
            difference, facts
        )


def _before(version: str, facts: Facts) -> bool:
    """Return whether the reference is older than a version."""
    return is_older(str(facts.get("version", "0")).split()[-1], version)


def _accumulated(facts: Facts) -> int:
    return int(facts.get("gradient_accumulation_steps") or 1)


def _accumulates(facts: Facts) -> bool:
    return _accumulated(facts) > 1


def _gradient_is_too_small(facts: Facts) -> bool:
    """Return whether the gradient of the reference is that of ours divided by the accumulated
    batches.

    Both are those of the same weights, and nothing else explains this factor.
    """
    reference, ours = facts.get("gradient_norms") or (None, None)
    if reference is None or ours is None:
        return False
    return math.isclose(_accumulated(facts) * reference, ours, rel_tol=_NEAR)


def _loss_is_a_sum(difference: Difference, facts: Facts) -> bool:
    """Return whether a loss of the reference is that of ours multiplied by the accumulated
    batches.
    """
    reference = difference.reference
    ours = difference.lightrainer
    if not isinstance(reference, float) or not isinstance(ours, float):
        return False
    return math.isclose(reference, _accumulated(facts) * ours, rel_tol=_NEAR)


_NEAR = 0.02
"""Relative tolerance of these factors, which are 2 or more, in half precision too."""


def _is(name: str) -> Callable[[Facts], bool]:
    return lambda facts: bool(facts.get(name))


_NUMBERS = (LOGS, METRICS, WEIGHTS, CONTENT)
_TRAIN_LOSS = ("*train_loss", "*train_loss (*)", "train_results.json *", "all_results.json *")

KNOWN = (
    Known(
        name="the gradient under accumulation",
        why=(
            "transformers before 5.10 divides the loss by gradient_accumulation_steps twice, so "
            "its gradients are too small by that factor; here a window of 4 is one batch of 4 "
            "times the size"
        ),
        groups=_NUMBERS,
        applies=lambda facts: (
            _accumulates(facts) and _before("5.10", facts) and _gradient_is_too_small(facts)
        ),
        remedy="compare everything else with --gradient_accumulation_steps 1 and a larger batch",
    ),
    Known(
        name="the logged loss of a mean under accumulation",
        why=(
            "of a model that takes **kwargs and returns a mean, transformers logs the sum over the "
            "accumulated batches, lightrainer the mean"
        ),
        groups=(LOGS, METRICS, CONTENT),
        names=("*step * loss", "*step * loss (*)", *_TRAIN_LOSS),
        applies=_accumulates,
        agrees=_loss_is_a_sum,
    ),
    Known(
        name="smoothed labels under accumulation",
        why=(
            "transformers takes the mean of the batches' means, lightrainer the mean over all "
            "tokens of a step"
        ),
        groups=_NUMBERS,
        applies=lambda facts: _accumulates(facts) and bool(facts.get("label_smoothing_factor")),
    ),
    Known(
        name="fp16 on the CPU",
        why=(
            "transformers trains in float32 without a warning, lightrainer in float16 with a loss "
            "scale"
        ),
        groups=_NUMBERS,
        applies=lambda facts: bool(facts.get("fp16") and facts.get("on_cpu")),
        remedy="compare without --fp16, or on a GPU",
    ),
    Known(
        name="the best model with save_strategy='best'",
        why=(
            "transformers before 5.23 forgets which checkpoint is the best: load_best_model_at_end "
            "loads nothing"
        ),
        groups=(METRICS, WEIGHTS, CONTENT, FILES),
        applies=lambda facts: (
            "best" in str(facts.get("save_strategy"))
            and bool(facts.get("load_best_model_at_end"))
            and _before("5.23", facts)
        ),
    ),
    Known(
        name="train_loss after a resumption",
        why="transformers before 5.23 divides the losses since then by all steps",
        groups=(LOGS, METRICS, CONTENT),
        names=_TRAIN_LOSS,
        applies=lambda facts: bool(facts.get("resume_from_checkpoint")) and _before("5.23", facts),
    ),
    Known(
        name="train_loss with several processes",
        why=(
            "of the steps since the last log transformers takes the loss of one process, "
            "lightrainer the mean of all"
        ),
        groups=(LOGS, METRICS, CONTENT),
        names=_TRAIN_LOSS,
        applies=lambda facts: int(facts.get("world_size") or 1) > 1,
    ),
    Known(
        name="auto_find_batch_size in mid-training",
        why=(
            "transformers goes on with the weights of the attempt that failed, lightrainer begins "
            "again from the first"
        ),
        groups=_NUMBERS,
        applies=_is("auto_find_batch_size"),
    ),
    Known(
        name="total_flos with disable_tqdm",
        why="transformers leaves it out of the metrics of train then",
        groups=(METRICS, LOGS, CONTENT),
        names=("*total_flos",),
        applies=_is("disable_tqdm"),
        only_in="lightrainer",
    ),
    Known(
        name="special tokens in the configs of a model",
        why=(
            "transformers before 5.23 erases those that the tokenizer lacks, and further ends of a "
            "generation"
        ),
        groups=(CONTENT,),
        names=("*config.json *_token_id*",),
        applies=lambda facts: _before("5.23", facts),
    ),
    Known(
        name="files that make checkpoints safe and exact",
        why=(
            "checksums (_manifest.json), and the position in the data, from which a training goes "
            "on to the same bits"
        ),
        groups=(FILES,),
        names=("*/_manifest.json", "*/data_state_*.pth", "*/scaler.pt"),
        only_in="lightrainer",
    ),
    Known(
        name="event files of TensorBoard",
        why="their names hold the time; torch writes a second one for the hyperparameters",
        groups=(FILES,),
        names=("*events.out.tfevents.*",),
    ),
    Known(
        name="model cards",
        why=(
            "lightrainer makes one of any model, with a picture of the losses; transformers only "
            "with a config"
        ),
        groups=(FILES,),
        names=("*README.md", "*loss_curve.svg"),
    ),
)
"""The first one that covers a difference is its reason."""


def reason(difference: Difference, facts: Facts) -> Known | None:
    """Return the reason for a difference; None if it is unknown."""
    return next((known for known in KNOWN if known.covers(difference, facts)), None)
