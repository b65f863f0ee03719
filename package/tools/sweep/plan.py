"""The options of `lightrainer sweep`."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .space import Space


class SweepError(RuntimeError):
    """The sweep cannot continue."""


class SweepPlan(Namespace):
    """The options of the command line, and values derived from them.

    argparse sets the attributes that have an option; `command.py` sets the others.
    """

    script: str
    """The path of the script."""
    script_arguments: list[str]
    """The arguments for the script."""
    command: list[str]
    """The command that starts the script, without `script_arguments`."""
    space: Space
    argument_types: dict[str, Any]
    """The types of the training arguments by name."""
    points: list[dict[str, Any]]
    """The points of a grid; empty with another sampler."""
    options_of_rerun: list[str]
    """The options for a sweep that repeats one trial of this sweep, except the trial's values."""
    n_trials: int
    """Number of trials of the study after the sweep.

    Trials from earlier runs of the command count too, unless they failed.
    """
    workers: int
    """Number of processes that run trials at the same time."""
    storage: str
    """The address of the study's storage."""
    study_name: str
    folder: Path
    """The folder of logs, results and the report."""
    metric: list[str]
    """The metrics to optimize."""
    is_metric_implied: bool
    """True if --metric was not passed."""
    direction: list[str]
    """`minimize` or `maximize`, one for each metric."""
    pruner: str
    sampler: str
    seed: int | None
    timeout: float | None
    """Seconds after which no further trial starts; None for no limit."""
    max_retry: int
    """How often a trial whose script was killed is run again."""
    max_failures: int
    """Number of failures before the first completed trial after which the sweep ends."""
    heartbeat: float
    """Seconds between the heartbeats that a worker writes to the storage."""
    launcher: str
    """The command that starts the script, such as `torchrun`; empty for Python."""
    gpus_per_trial: int | None
    """Number of GPUs of each script; None leaves CUDA_VISIBLE_DEVICES unchanged."""
    gpus: Sequence[str | None]
    """CUDA_VISIBLE_DEVICES for the scripts of each worker; None leaves it unchanged."""

    @property
    def goal(self) -> str:
        """Describe the objectives, such as `maximize eval_accuracy`."""
        from ...facade.search.metric_objective import describe_goal

        return describe_goal(self.direction, self.metric)
