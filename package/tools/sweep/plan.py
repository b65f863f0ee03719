"""The plan of a sweep: the options of its command line, checked, and values that follow from
them.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .space import Space


class SweepError(RuntimeError):
    """The sweep cannot continue."""


class SweepPlan(Namespace):
    """The options of the command line, checked, and values that follow from them."""

    script: str
    passed_on: list[str]
    """The words for the script; `{run}` in them is the name of the trial."""
    command: list[str]
    """The words that start the script, without those."""
    space: Space
    values_as: str
    """Form in which the script gets values: `arguments`, `options` or `environment`."""
    points: list[dict[str, Any]]
    """The points of a grid."""
    begin_with: Any
    """A study of optuna whose trials are added to this one; None without."""
    again: list[str]
    """The options of a sweep that runs one trial of this one again, without its values."""
    n_trials: int
    """Trials of the study in the end, those of earlier starts included unless they failed."""
    workers: int
    storage: str
    study_name: str
    folder: Path
    metric: list[str]
    direction: list[str]
    """`minimize` or `maximize`, one for each metric."""
    value: str
    """`last` or `best`, the evaluation of a training that counts."""
    training: int | None
    """The call of `train` that counts in a script with several, from 1; None for the last that
    evaluates.
    """
    pruner: str
    pruning_unit: str
    """`steps` or `epochs`, the unit of reports to the pruner."""
    sampler: str
    seed: int | None
    timeout: float | None
    max_retry: int
    max_failures: int
    """Number of failures before the first completed trial after which the sweep ends."""
    retry_failed: bool
    """Run trials that failed in an earlier start again."""
    heartbeat: float
    remove_pruned: bool
    launcher: str
    gpus_per_trial: int | None
    gpus: list[str | None]
    """CUDA_VISIBLE_DEVICES for the scripts of each worker; None leaves it as it is."""

    @property
    def goal(self) -> str:
        """Describe the objectives, such as `maximize eval_accuracy`."""
        return ", ".join(
            f"{word} {name}" for word, name in zip(self.direction, self.metric, strict=True)
        )
