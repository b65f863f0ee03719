"""What a sweep is to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """What to do; the fields are the options of the command line."""

    command: list[str]
    """What starts the script, and its own arguments, in which `{run}` is the name of the trial."""
    space: list[Any]
    values_as: str
    """How values reach the script: `arguments`, `options`, `overrides` or `environment`."""
    flags: set[str]
    """Parameters that are options without a value."""
    points: list[dict[str, Any]]
    """Those of a grid."""
    again: list[str]
    """The options of a sweep that runs one trial of this one once more, without its values."""
    passed_on: list[str]
    """The words for the script."""
    n_trials: int
    """How many the study is to have, those of earlier starts included unless they failed."""
    workers: int
    storage: str | None
    """By default a file of SQLite in the folder."""
    name: str
    folder: Path
    metrics: list[str]
    """Without any the script is asked."""
    directions: list[str]
    value: str
    """`last` or `best`: which evaluation of a training counts."""
    training: int | None
    """Which call of `train` counts in a script with several, from 1; None for the last that evaluates."""
    pruner: str
    pruning_unit: str
    """`steps` or `epochs`: what evaluations are reported under to the pruner."""
    sampler: str
    seed: int | None
    timeout: float | None
    max_retry: int
    max_failures: int
    """After so many failures before the first completed trial the script is at fault, and the sweep ends."""
    retry_failed: bool
    """Whether trials that failed in an earlier start are run once more."""
    heartbeat: float
    remove_pruned: bool

    @property
    def goal(self) -> str:
        """What is done with what, such as `maximize eval_accuracy`."""
        return ", ".join(f"{word} {name}" for word, name in zip(self.directions, self.metrics, strict=True))
