"""The command `sweep`: run an unchanged script many times, as trials of a study of optuna."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any

from ..command_line import CommandParser, positive, whole
from .plan import SweepError, SweepPlan

_TRIALS = 20
"""Number of trials by default; of a grid all points."""

_DESCRIPTION = """\
Run a script with a Trainer, or with one of Lightning, many times, each time with other values, to
find the best. The script is not changed: TrainingArguments apply the values by themselves, whatever
the script passes; parameters that are not training arguments are added to its command line, as
--name=value. Each run has the folder run-<number> in its output_dir. Stop it at any time: the same
command resumes it where it stopped.
"""
_EPILOG = """\
The values, in YAML (or the same in JSON):

{}
Arguments for the script go after --; {{run}} in them becomes the name of the trial, such as run-3.

Example: lightrainer sweep train.py --space space.yaml --n-trials 50 --workers 2 --pruner median --
--epochs 3
"""


def sweep(flags: Sequence[str]) -> int:
    """Run the command line of a sweep.

    Args:
        flags: The words after `sweep`.

    Returns:
        0 if a trial was completed, 1 if none was, 130 after an interrupt.

    Raises:
        SystemExit: With status 2 and the reason on stderr where an option is wrong; nothing is
            begun then.
    """
    from ...lightning_modules.common.redaction import secret_words

    parser = _parser()
    words = secret_words(flags)
    cut = words.index("--") if "--" in words else len(words)
    plan = parser.parse_own(words[:cut], "Arguments for the script go after --.", SweepPlan())
    plan.passed_on = words[cut + 1 :]
    try:
        _complete(plan)
    except (ValueError, TypeError, OSError, ImportError) as error:
        parser.error(str(error))
    return _run(plan)


def _parser() -> CommandParser:
    from .space import EXAMPLE

    parser = CommandParser("sweep", _DESCRIPTION, _EPILOG.format(textwrap.indent(EXAMPLE, "  ")))
    parser.add_argument("script", help="the script, a Python file")
    _add_search(parser.add_argument)
    _add_run(parser.add_argument)
    return parser


def _add_search(add: Callable[..., Any]) -> None:
    add(
        "--space",
        required=True,
        metavar="FILE",
        help="YAML or JSON: the values to try, for each parameter",
    )
    add(
        "--n-trials",
        type=whole(),
        metavar="N",
        help=f"trials of the study, earlier ones included ({_TRIALS}; of a grid all points)",
    )
    add(
        "--values-as",
        choices=("arguments", "options", "environment"),
        default="arguments",
        help=(
            "how the script gets them: arguments (see above), options (--name=value, also for "
            "LightningCLI), environment (variables) (%(default)s)"
        ),
    )
    add(
        "--metric",
        "--objective",
        dest="metric",
        action="append",
        default=[],
        metavar="NAME",
        help=(
            "what is optimized; again for another objective. By default the best metric of the "
            "script itself, which is run until it has made its TrainingArguments: "
            "metric_for_best_model, or eval_loss"
        ),
    )
    add(
        "--direction",
        action="append",
        default=[],
        metavar="NAME",
        choices=("minimize", "maximize"),
        help="minimize or maximize, one for each metric; by default what is usual for that",
    )
    add(
        "--value",
        choices=("last", "best"),
        default="last",
        help="which evaluation of the training counts (%(default)s)",
    )
    add(
        "--training",
        type=whole(),
        metavar="N",
        help=(
            "which call of train() counts in a script with several; by default the last one that "
            "evaluates"
        ),
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
        "--pruning-unit",
        choices=("steps", "epochs"),
        default="steps",
        help="what the pruner compares trials at: steps, or completed epochs (%(default)s)",
    )
    add(
        "--sampler",
        default="tpe",
        metavar="NAME",
        help="tpe, random, grid, cmaes, gp, qmc, nsgaii (%(default)s)",
    )
    add("--seed", type=whole(0, 2**32 - 1), metavar="N", help="of the sampler")


def _add_run(add: Callable[..., Any]) -> None:
    add(
        "--workers",
        type=whole(),
        default=1,
        metavar="N",
        help="how many run at the same time (%(default)s)",
    )
    add(
        "--begin-with",
        default="",
        metavar="ADDRESS",
        help=(
            "an earlier study whose trials the sampler knows: the folder of its sweep, or its "
            "storage, and #NAME where that has several studies"
        ),
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
        help="for logs and report; by default sweeps/<name of the study>",
    )
    add("--timeout", type=positive, metavar="SECONDS", help="begin no trial after that")
    add(
        "--max-retry",
        type=whole(0),
        default=3,
        metavar="N",
        help="how often a trial is retried whose process was killed (%(default)s)",
    )
    add(
        "--max-failures",
        type=whole(),
        default=3,
        metavar="N",
        help="failures before the first completed trial after which the sweep ends (%(default)s)",
    )
    add(
        "--retry-failed",
        action="store_true",
        help="run trials that failed in an earlier start again",
    )
    add(
        "--heartbeat",
        type=positive,
        default=60,
        metavar="SECONDS",
        help=(
            "interval of a worker's heartbeat; without one for twice as long, it counts as killed "
            "(%(default)s)"
        ),
    )
    add(
        "--launcher",
        default="",
        metavar="COMMAND",
        help="what starts the script, such as 'torchrun --nproc_per_node=2'; by default Python",
    )
    add(
        "--gpus-per-trial",
        type=whole(0),
        metavar="N",
        help=(
            "GPUs for each trial, not shared; by default as many as --launcher starts processes, "
            "or one, shared where there are more workers than GPUs; with one worker all of them"
        ),
    )
    add("--remove-pruned", action="store_true", help="remove the folders of pruned trials")


def _complete(plan: SweepPlan) -> None:
    """Check everything, before anything is written, and derive the other values of the plan."""
    from ...facade.search.earlier_trials import load_earlier
    from ...facade.search.samplers import make_pruner, make_sampler

    if not os.path.isfile(plan.script):
        raise FileNotFoundError(f"{plan.script}: there is no such script.")
    _complete_objective(plan)
    plan.again = _options_of_one(plan)
    _complete_space(plan)
    make_pruner(plan.pruner)
    make_sampler(plan.sampler, plan.seed)
    plan.begin_with = load_earlier(plan.begin_with) if plan.begin_with else None
    _complete_folder(plan)
    plan.gpus = _gpus_of_workers(plan)
    plan.command = [*_launcher(plan.launcher), plan.script]
    _warn(plan)


def _complete_objective(plan: SweepPlan) -> None:
    from ...facade.search.metric_objective import usual_directions

    if plan.direction and len(plan.direction) != len(plan.metric or ["the script's"]):
        raise ValueError(
            f"There are {len(plan.metric)} --metric and {len(plan.direction)} --direction: give "
            "one for each."
        )
    plan.direction = plan.direction or usual_directions(plan.metric, "--direction", "--metric")
    if len(plan.metric) > 1 and plan.pruner != "none":
        raise ValueError(
            "--pruner needs a single --metric: optuna prunes nothing where there are several "
            "objectives."
        )
    if len(plan.metric) > 1 and plan.value == "best":
        raise ValueError(
            "--value best needs a single --metric: the best evaluation by one need not be that by "
            "another."
        )


def _complete_space(plan: SweepPlan) -> None:
    from ...facade import Seq2SeqTrainingArguments
    from ...facade.arguments.trial_values import declared_types
    from .space import read_space

    is_grid = plan.sampler == "grid"
    arguments = declared_types(Seq2SeqTrainingArguments) if plan.values_as == "arguments" else {}
    plan.space = read_space(str(plan.space), arguments)
    if plan.space.enqueue and is_grid:
        raise ValueError("enqueue: --sampler grid tries all values anyway. Leave one of them out.")
    plan.points = plan.space.grid() if is_grid else []
    if plan.points:
        plan.n_trials = min(plan.n_trials or len(plan.points), len(plan.points))
    plan.n_trials = plan.n_trials or _TRIALS


def _complete_folder(plan: SweepPlan) -> None:
    from ...lightning_modules.common.local_paths import require_local

    require_local(plan.folder, "--folder")
    plan.study_name = plan.study_name or Path(plan.script).stem
    if not plan.folder and (
        plan.study_name == ".." or Path(plan.study_name).name != plan.study_name
    ):
        raise ValueError(
            f"--study-name {plan.study_name!r} cannot be the name of a folder: pass --folder, too."
        )
    plan.folder = Path(plan.folder or os.path.join("sweeps", plan.study_name)).absolute()


def _launcher(written: str) -> list[str]:
    """Return the words that start a script."""
    words = shlex.split(written) or [sys.executable]
    if shutil.which(words[0]) is None:
        raise FileNotFoundError(f"--launcher {written}: there is no program {words[0]!r}.")
    return words


def _gpus_of_workers(plan: SweepPlan) -> list[str | None]:
    """Return the CUDA_VISIBLE_DEVICES of each worker's scripts; None leaves it as it is.

    Raises:
        ValueError: there are too few GPUs.
    """
    count = plan.gpus_per_trial
    gpus = _visible_gpus()
    if count is None and (plan.workers == 1 or not gpus):
        return [None] * plan.workers
    if count is None:
        processes = re.search(
            r"--(?:nproc[-_]per[-_]node|num[-_]processes)[= ]+(\d+)", plan.launcher
        )
        if processes is None:
            return [gpus[worker % len(gpus)] for worker in range(plan.workers)]
        count = int(processes[1])
    if plan.workers * count > len(gpus):
        raise ValueError(
            f"--workers {plan.workers} with --gpus-per-trial {count} (by default the processes of "
            f"--launcher) need {plan.workers * count} GPUs, and {len(gpus)} are visible: lower "
            "one of them."
        )
    return [",".join(gpus[worker * count : (worker + 1) * count]) for worker in range(plan.workers)]


def _visible_gpus() -> list[str]:
    """Return the ids in CUDA_VISIBLE_DEVICES up to the first invalid one, as CUDA; all GPUs
    where it is not set.
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        import torch

        return [str(index) for index in range(torch.cuda.device_count())]  # makes no CUDA context
    ids = [one.strip() for one in listed.split(",")]
    return list(itertools.takewhile(lambda one: one not in ("", "-1", "NoDevFiles"), ids))


def _options_of_one(plan: SweepPlan) -> list[str]:
    """Return the options of a sweep with one trial that is run and judged as those of this one."""
    words = [plan.script, "--n-trials", "1"]
    for name in (
        "launcher",
        "values_as",
        "value",
        "training",
        "metric",
        "gpus_per_trial",
        "direction",
    ):
        given = getattr(plan, name)
        values = given if isinstance(given, list) else [given]
        for value in values:
            if value not in (None, ""):
                words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def _warn(plan: SweepPlan) -> None:
    """Warn of names that may be misspelt, and of batch sizes that make steps incomparable."""
    from optuna.distributions import IntDistribution

    from ...facade import Seq2SeqTrainingArguments
    from ...facade.search.search_run import BATCH_SIZES
    from ...lightning_modules.common.suggestions import did_you_mean

    if plan.values_as == "arguments":
        known = {item.name for item in fields(Seq2SeqTrainingArguments)}
        for parameter in plan.space.parameters:
            name = parameter.name
            if name not in known:
                kind = (
                    ", a whole number"
                    if isinstance(parameter.distribution, IntDistribution)
                    else ""
                )
                print(
                    f"{name} is no training argument.{did_you_mean(name, known)} The script gets "
                    f"it as --{name}{kind}.",
                    file=sys.stderr,
                )
    varied = [parameter.name for parameter in plan.space.parameters if not parameter.is_constant]
    sizes = [name for name in varied if name in BATCH_SIZES]
    if sizes and plan.pruner != "none" and plan.pruning_unit == "steps":
        print(
            f"The space has {' and '.join(sizes)}, and the pruner compares trials at the same "
            "optimizer step, after different amounts of data. Pass --pruning-unit epochs.",
            file=sys.stderr,
        )


def _run(plan: SweepPlan) -> int:
    from ...facade.search.storages import StorageError
    from .script_process import set_objective
    from .workers import Sweep, signals_handled_by

    try:
        with signals_handled_by(_interrupt):
            set_objective(plan)
            return Sweep(plan).run()
    except (SweepError, StorageError, ImportError, ValueError, OSError) as error:
        print(f"lightrainer sweep: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. The same command resumes the sweep.", file=sys.stderr)
        return 130


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
