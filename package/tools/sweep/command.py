"""The command `sweep`: run an unchanged script many times, as the trials of an Optuna study."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from ..command_line import CommandParser, integer, positive
from .plan import SweepError, SweepPlan

_DEFAULT_TRIALS = 20
"""Number of trials by default; a grid runs all of its points."""

_DESCRIPTION = """\
Run a script with a Trainer many times with different values, to find the best values. The script
stays unchanged: its TrainingArguments use the values of the trial, whatever the script passes.
Parameters that are not training arguments are added to its command line, as --name=value. Each run
has the folder run-<number> in its output_dir. You can stop the sweep at any time: the same command
resumes where it stopped.
"""
_EPILOG = """\
The values, in YAML (or the same in JSON):

{}
Arguments for the script go after --.

Example: lightrainer sweep train.py --space space.yaml --n-trials 50 --workers 2 \\
    --pruner median -- --epochs 3
"""


def sweep(flags: Sequence[str]) -> int:
    """Run the command line of a sweep.

    Args:
        flags: the words after `sweep`.

    Returns:
        0 if a trial completed, 1 if none did, 130 after an interrupt.

    Raises:
        SystemExit: an option is invalid. The status is 2, the reason is on stderr, and nothing was
            started.
    """
    from ...lightning_modules.common.redaction import secret_words

    # The words before `--` are options of the sweep; those after it belong to the script.
    parser = _make_parser()
    words = secret_words(flags)
    separator = words.index("--") if "--" in words else len(words)
    advice = "Arguments for the script go after --."
    plan = parser.parse_with_advice(words[:separator], advice, SweepPlan())
    plan.script_arguments = words[separator + 1 :]
    try:
        _complete_plan(plan)
    except (ValueError, TypeError, OSError, ImportError) as error:
        parser.error(str(error))
    return _run(plan)


def _make_parser() -> CommandParser:
    """Return the parser of the command, whose options are attributes of `SweepPlan`."""
    from .space import EXAMPLE

    epilog = _EPILOG.format(textwrap.indent(EXAMPLE, "  "))
    parser = CommandParser("sweep", _DESCRIPTION, epilog)
    parser.add_argument("script", help="the script, a Python file")
    _add_search_options(parser)
    _add_run_options(parser)
    return parser


def _add_search_options(parser: ArgumentParser) -> None:
    """Add the options about the search: its space, objective, pruner and sampler."""
    add = parser.add_argument
    add(
        "--space",
        required=True,
        metavar="FILE",
        help="YAML or JSON: the values to try, for each parameter",
    )
    add(
        "--n-trials",
        type=integer(),
        metavar="N",
        help=(
            "number of trials of the study, including earlier ones "
            f"({_DEFAULT_TRIALS}; with a grid all points)"
        ),
    )
    add(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="the metric to optimize (eval_loss); repeat it for several objectives",
    )
    add(
        "--direction",
        action="append",
        default=[],
        metavar="NAME",
        choices=("minimize", "maximize"),
        help="minimize or maximize, one for each metric; by default the usual one for the metric",
    )
    add(
        "--pruner",
        default="none",
        metavar="NAME",
        help=(
            "none, median, halving, hyperband, percentile, ...; or median:n_startup_trials=3 "
            "(%(default)s)"
        ),
    )
    add(
        "--sampler",
        default="tpe",
        metavar="NAME",
        help="tpe, random, grid, gp, qmc, nsgaii (%(default)s)",
    )
    add("--seed", type=integer(0, 2**32 - 1), metavar="N", help="seed of the sampler")


def _add_run_options(parser: ArgumentParser) -> None:
    """Add the options about running trials and storing their results."""
    add = parser.add_argument
    add(
        "--workers",
        type=integer(),
        default=1,
        metavar="N",
        help="number of trials that run in parallel (%(default)s)",
    )
    add(
        "--storage",
        default="",
        metavar="ADDRESS",
        help=(
            "sqlite:///..., postgresql://..., mysql://..., or a journal file; by default study.db "
            "in the folder"
        ),
    )
    add("--study-name", default="", metavar="NAME", help="by default the name of the script")
    add(
        "--folder",
        default="",
        metavar="FOLDER",
        help="folder for logs and report; by default sweeps/<name of the study>",
    )
    add("--timeout", type=positive, metavar="SECONDS", help="start no trial after this time")
    add(
        "--max-retry",
        type=integer(0),
        default=3,
        metavar="N",
        help="how often a trial whose process was killed is retried (%(default)s)",
    )
    add(
        "--max-failures",
        type=integer(),
        default=3,
        metavar="N",
        help="end the sweep after N failures without a completed trial (%(default)s)",
    )
    add(
        "--heartbeat",
        type=positive,
        default=60,
        metavar="SECONDS",
        help=(
            "interval of a worker's heartbeat in a database; a worker without one for twice as "
            "long counts as killed (%(default)s)"
        ),
    )
    add(
        "--launcher",
        default="",
        metavar="COMMAND",
        help="command that starts the script, e.g. 'torchrun --nproc_per_node=2' (Python)",
    )
    add(
        "--gpus-per-trial",
        type=integer(0),
        metavar="N",
        help=(
            "number of GPUs of each trial, not shared. By default all with a single worker; with "
            "several one for each, shared if there are more workers than GPUs"
        ),
    )


def _complete_plan(plan: SweepPlan) -> None:
    """Check all options and derive the other values of the plan, without writing anything."""
    from ...facade.search.samplers import make_pruner, make_sampler

    if not os.path.isfile(plan.script):
        raise FileNotFoundError(f"The script {plan.script} does not exist.")
    _complete_objective(plan)
    plan.options_of_rerun = _options_of_rerun(plan)
    _complete_space(plan)

    # The workers make their own pruner and sampler. Making them here checks the options.
    make_pruner(plan.pruner)
    make_sampler(plan.sampler, plan.seed)

    _complete_folder(plan)
    plan.gpus = _gpus_of_workers(plan)
    plan.command = [*_split_launcher(plan.launcher), plan.script]
    _warn_of_unknown_names(plan)


def _complete_objective(plan: SweepPlan) -> None:
    """Check metrics and directions, and fill in those that were not passed."""
    from ...facade.search.metric_objective import usual_directions

    plan.is_metric_implied = not plan.metric
    if plan.is_metric_implied:
        plan.metric = ["eval_loss"]
    if not plan.direction:
        plan.direction = usual_directions(plan.metric)
    if len(plan.direction) != len(plan.metric):
        raise ValueError(
            f"There are {len(plan.metric)} --metric and {len(plan.direction)} --direction: pass "
            "one --direction for each --metric."
        )
    if len(plan.metric) > 1 and plan.pruner != "none":
        raise ValueError(
            f"--pruner {plan.pruner} needs a single --metric: optuna does not prune with several "
            "objectives. Pass one --metric, or leave --pruner out."
        )


def _complete_space(plan: SweepPlan) -> None:
    """Read the space, and derive the number of trials."""
    from ...facade import Seq2SeqTrainingArguments
    from ...facade.arguments.trial_values import declared_types
    from .space import read_space

    is_grid = plan.sampler == "grid"
    plan.argument_types = declared_types(Seq2SeqTrainingArguments)
    plan.space = read_space(str(plan.space), plan.argument_types)
    plan.points = plan.space.grid() if is_grid else []
    if plan.points:
        plan.n_trials = min(plan.n_trials or len(plan.points), len(plan.points))
    plan.n_trials = plan.n_trials or _DEFAULT_TRIALS


def _complete_folder(plan: SweepPlan) -> None:
    """Set the name of the study, and derive the folder from it."""
    from ...lightning_modules.common.local_paths import require_local

    require_local(plan.folder, "--folder")
    name = plan.study_name or Path(plan.script).stem
    is_folder_name = name != ".." and Path(name).name == name
    if not plan.folder and not is_folder_name:
        raise ValueError(
            f"--study-name {name!r} cannot be the name of a folder: pass --folder as well."
        )
    plan.study_name = name
    plan.folder = Path(plan.folder or os.path.join("sweeps", name)).absolute()


def _split_launcher(launcher: str) -> list[str]:
    """Return the words of the command that starts the script, which is Python by default."""
    words = shlex.split(launcher) or [sys.executable]
    if shutil.which(words[0]) is None:
        raise FileNotFoundError(f"--launcher {launcher}: the program {words[0]!r} was not found.")
    return words


def _gpus_of_workers(plan: SweepPlan) -> Sequence[str | None]:
    """Return CUDA_VISIBLE_DEVICES for each worker's scripts; None leaves the variable unchanged.

    Raises:
        ValueError: there are too few GPUs.
    """
    gpus = _visible_gpus()
    gpus_per_trial = plan.gpus_per_trial
    if gpus_per_trial is None:
        if plan.workers == 1 or not gpus:
            return [None] * plan.workers

        # If there are more workers than GPUs, several workers share one.
        return [gpus[worker % len(gpus)] for worker in range(plan.workers)]

    if plan.workers * gpus_per_trial > len(gpus):
        raise ValueError(
            f"--workers {plan.workers} with --gpus-per-trial {gpus_per_trial} needs "
            f"{plan.workers * gpus_per_trial} GPUs, but only {len(gpus)} are visible. Lower one of "
            "them."
        )
    gpus_of_workers = []
    for worker in range(plan.workers):
        first = worker * gpus_per_trial
        gpus_of_workers.append(",".join(gpus[first : first + gpus_per_trial]))
    return gpus_of_workers


def _visible_gpus() -> list[str]:
    """Return the ids of the GPUs that CUDA can see.

    CUDA ignores the rest of CUDA_VISIBLE_DEVICES after the first invalid id, and so does this.
    """
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    if variable is None:
        import torch

        # `device_count` does not create a CUDA context in this process.
        return [str(index) for index in range(torch.cuda.device_count())]
    gpu_ids = []
    for entry in variable.split(","):
        gpu_id = entry.strip()
        if gpu_id in ("", "-1", "NoDevFiles"):
            break
        gpu_ids.append(gpu_id)
    return gpu_ids


def _options_of_rerun(plan: SweepPlan) -> list[str]:
    """Return the options for a sweep that repeats one trial of this sweep.

    The report shows them in the command that trains the best trial again.
    """
    words = [plan.script, "--n-trials", "1"]
    names = ("launcher", "metric", "gpus_per_trial", "direction")
    for name in names:
        option = f"--{name.replace('_', '-')}"
        value = getattr(plan, name)
        # An option with several values is repeated.
        values = value if isinstance(value, list) else [value]
        for word in values:
            if word not in (None, ""):
                words += [option, str(word)]
    return words


def _warn_of_unknown_names(plan: SweepPlan) -> None:
    """Warn about parameters that are not training arguments, because they may be misspelt."""
    from ...lightning_modules.common.suggestions import did_you_mean

    for parameter in plan.space.parameters:
        name = parameter.name
        if name not in plan.argument_types:
            print(
                f"{name} is not a training argument.{did_you_mean(name, plan.argument_types)} The "
                f"script gets it as --{name}.",
                file=sys.stderr,
            )


def _run(plan: SweepPlan) -> int:
    """Run the sweep, and return the exit status."""
    from ...facade.search.storages import StorageError
    from .workers import Sweep

    try:
        return Sweep(plan).run()
    except (SweepError, StorageError, ImportError, ValueError, OSError) as error:
        print(f"lightrainer sweep: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. The same command resumes the sweep.", file=sys.stderr)
        return 130
