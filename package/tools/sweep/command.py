"""The command `sweep`: run an unchanged script many times, as trials of a study of optuna."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import ast
import itertools
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any

from ..command_line import CommandParser, positive, whole
from .trial_script import SweepError, SweepPlan, set_objective
from .workers import Sweep

_DESCRIPTION = """\
Run a script with a Trainer, or with one of Lightning, many times, each time with other values, to find the best. The
script is not changed: TrainingArguments apply the values by themselves, whatever the script passes; parameters that
are not training arguments are added to its command line, as --name value. Each run has the folder run-<number> in its
output_dir. Stop it at any time, and start it again with the same command: it goes on where it was.
"""
_EPILOG = """\
The values, in YAML (or the same in JSON):

{}
What follows -- is passed on to the script; {{run}} in it becomes the name of the trial, such as run-3.

Example: lightrainer sweep train.py --space space.yaml --n-trials 50 --workers 2 --pruner median -- --epochs 3
"""


def sweep(flags: Sequence[str]) -> int:
    """Run the command line of a sweep.

    Args:
        flags: The words after `sweep`.

    Returns:
        0 if a trial was completed, 1 if none was, 130 after an interrupt.

    Raises:
        SystemExit: With status 2 and the reason on stderr where an option is wrong; nothing is begun then.
    """
    from ...lightning_modules.common.redaction import secret_words

    parser = _parser()
    words = secret_words(flags)
    cut = words.index("--") if "--" in words else len(words)
    plan = parser.parse_own(words[:cut], "What is for the script follows --.", SweepPlan())
    plan.passed_on = words[cut + 1 :]
    try:
        _complete(plan)
    except (ValueError, TypeError, OSError, ImportError, SyntaxError) as error:
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
    ways = "how the script gets them: arguments (see above), options (--name value, also for LightningCLI), overrides "
    ways += "(name=value, for Hydra), environment (variables) (%(default)s)"
    metric = "what is optimized; again for another objective. By default the best metric of the script itself, which "
    metric += "is run until it has made its TrainingArguments: metric_for_best_model, or eval_loss"
    training = "which call of train() counts in a script with several; by default the last one that evaluates"
    pruner = "none, median, halving, hyperband, percentile, ...; or median:n_startup_trials=3 (%(default)s)"
    unit = "what the pruner compares trials at: steps, or completed epochs (%(default)s)"
    named: dict[str, Any] = {"action": "append", "default": []}
    add("--space", required=True, metavar="FILE", help="YAML or JSON: the values to try, for each parameter")
    trials = "trials of the study, earlier ones included (20; of a grid all points)"
    add("--n-trials", type=whole(), metavar="N", help=trials)
    forms = ("arguments", "options", "overrides", "environment")
    add("--values-as", choices=forms, default="arguments", help=ways)
    add("--metric", "--objective", dest="metric", metavar="NAME", help=metric, **named)
    direction = "minimize or maximize, one for each metric; by default what is usual for that"
    add("--direction", choices=("minimize", "maximize"), help=direction, **named)
    which = "which evaluation of the training counts (%(default)s)"
    add("--value", choices=("last", "best"), default="last", help=which)
    add("--training", type=whole(), metavar="N", help=training)
    add("--pruner", default="none", metavar="NAME", help=pruner)
    add("--pruning-unit", choices=("steps", "epochs"), default="steps", help=unit)
    samplers = "tpe, random, grid, cmaes, gp, qmc, nsgaii (%(default)s)"
    add("--sampler", default="tpe", metavar="NAME", help=samplers)
    add("--seed", type=whole(0, 2**32 - 1), metavar="N", help="of the sampler")


def _add_run(add: Callable[..., Any]) -> None:
    storage = "sqlite:///..., postgresql://..., mysql://..., or a journal file; by default study.db in the folder"
    retry = "how often a trial is begun again whose process was killed (%(default)s)"
    failures = "give up after so many failures before the first completed trial (%(default)s)"
    beat = "interval of a worker's heartbeat, in a database; without one for twice as long, it counts as killed "
    launcher = "what starts the script, such as 'torchrun --nproc_per_node=2'; by default Python"
    gpus = "GPUs of its own for each trial; by default as many as --launcher starts processes, or one, shared "
    gpus += "where there are more workers than GPUs; with one worker all of them"
    folder = "for logs and report; by default sweeps/<name of the study>"
    add("--workers", type=whole(), default=1, metavar="N", help="how many run at the same time (%(default)s)")
    earlier = "an earlier study whose trials the sampler knows: the folder of its sweep, or its storage, and #NAME "
    earlier += "where that has several studies"
    add("--begin-with", default="", metavar="ADDRESS", help=earlier)
    add("--storage", default="", metavar="ADDRESS", help=storage)
    add("--study-name", default="", metavar="NAME", help="by default the name of the script")
    add("--folder", default="", metavar="FOLDER", help=folder)
    add("--timeout", type=positive, metavar="SECONDS", help="begin no trial after that")
    add("--max-retry", type=whole(0), default=3, metavar="N", help=retry)
    add("--max-failures", type=whole(), default=3, metavar="N", help=failures)
    add("--retry-failed", action="store_true", help="run trials that failed in an earlier start once more")
    add("--heartbeat", type=positive, default=60, metavar="SECONDS", help=f"{beat}(%(default)s)")
    add("--launcher", default="", metavar="COMMAND", help=launcher)
    add("--gpus-per-trial", type=whole(0), metavar="N", help=gpus)
    add("--remove-pruned", action="store_true", help="remove the folders of pruned trials")


def _complete(plan: SweepPlan) -> None:
    """Check everything, before anything is written, and derive the other values of the plan."""
    from ...facade import Seq2SeqTrainingArguments
    from ...facade.search.earlier_trials import load_earlier
    from ...facade.search.metric_objective import directions_of
    from ...facade.search.samplers import make_pruner, make_sampler
    from ...lightning_modules.common.local_paths import require_local
    from .space import check_values, grid, read_space

    if not os.path.isfile(plan.script):
        raise FileNotFoundError(f"{plan.script}: there is no such script.")
    require_local(plan.folder, "--folder")
    if plan.direction and len(plan.direction) != len(plan.metric or ["the script's"]):
        raise ValueError(
            f"There are {len(plan.metric)} --metric and {len(plan.direction)} --direction: give one for each."
        )
    plan.direction = plan.direction or directions_of(plan.metric, "--direction", "--metric")
    plan.again = _options_of_one(plan)
    plan.enqueue = []
    plan.space = read_space(plan.space, plan.enqueue)  # type: ignore[arg-type]
    if plan.enqueue and plan.sampler == "grid":
        raise ValueError("enqueue: --sampler grid tries all values anyway. Leave one of them out.")
    if plan.values_as == "arguments":
        check_values(plan.space, Seq2SeqTrainingArguments)
    plan.points = grid(plan.space) if plan.sampler == "grid" else []
    plan.n_trials = min(plan.n_trials or len(plan.points) or 20, len(plan.points) or sys.maxsize)
    if len(plan.metric) > 1 and plan.pruner != "none":
        raise ValueError("--pruner needs a single --metric: optuna prunes nothing where there are several objectives.")
    make_pruner(plan.pruner)
    make_sampler(plan.sampler, plan.seed)
    plan.begin_with = load_earlier(plan.begin_with) if plan.begin_with else None
    plan.study_name = plan.study_name or Path(plan.script).stem
    if not plan.folder and (plan.study_name == ".." or Path(plan.study_name).name != plan.study_name):
        raise ValueError(f"--study-name {plan.study_name!r} cannot be the name of a folder: pass --folder, too.")
    plan.folder = Path(plan.folder or os.path.join("sweeps", plan.study_name)).absolute()
    plan.gpus = _gpus_of_workers(plan)
    plan.command = [*_launcher(plan.launcher), plan.script, *plan.passed_on]
    plan.flags = {one.name for one in plan.space if one.is_flag} | _flags_of(plan.script)
    _warn(plan)


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
    wanted, gpus = plan.gpus_per_trial, _visible_gpus()
    if wanted is None and (plan.workers == 1 or not gpus):
        return [None] * plan.workers
    if wanted is None:
        processes = re.search(r"--(?:nproc[-_]per[-_]node|num[-_]processes)[= ]+(\d+)", plan.launcher)
        if processes is None:
            return [gpus[worker % len(gpus)] for worker in range(plan.workers)]
        wanted = int(processes[1])
    if plan.workers * wanted > len(gpus):
        asked = f"--workers {plan.workers} with --gpus-per-trial {wanted} (by default the processes of --launcher)"
        raise ValueError(f"{asked} need {plan.workers * wanted} GPUs, and {len(gpus)} are visible: lower one of them.")
    return [",".join(gpus[worker * wanted : (worker + 1) * wanted]) for worker in range(plan.workers)]


def _visible_gpus() -> list[str]:
    """Return the ids in CUDA_VISIBLE_DEVICES up to the first invalid one, as CUDA; all GPUs where it is not set."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        import torch

        return [str(index) for index in range(torch.cuda.device_count())]  # makes no CUDA context
    ids = [one.strip() for one in listed.split(",")]
    return list(itertools.takewhile(lambda one: one not in ("", "-1", "NoDevFiles"), ids))


def _options_of_one(plan: SweepPlan) -> list[str]:
    """Return the options of a sweep with one trial that is run and judged as those of this one."""
    named = [("--launcher", plan.launcher), ("--values-as", plan.values_as), ("--value", plan.value)]
    named += [("--training", plan.training), *zip(itertools.repeat("--metric"), plan.metric)]
    named += [("--gpus-per-trial", plan.gpus_per_trial), *zip(itertools.repeat("--direction"), plan.direction)]
    given = [pair for pair in named if pair[1] not in (None, "")]
    return [plan.script, "--n-trials", "1", *(str(word) for pair in given for word in pair)]


def _flags_of(script: str) -> set[str]:
    """Return the options without a value that a script declares to argparse, by `action="store_true"`."""
    calls = [one for one in ast.walk(ast.parse(Path(script).read_bytes(), script)) if isinstance(one, ast.Call)]
    flags = [one for one in calls if any(ast.unparse(word) == "action='store_true'" for word in one.keywords)]
    return {str(word.value).lstrip("-") for one in flags for word in one.args if isinstance(word, ast.Constant)}


def _warn(plan: SweepPlan) -> None:
    """Warn of names that may be misspelt, and of batch sizes that make steps incomparable."""
    from ...facade import Seq2SeqTrainingArguments
    from ...facade.search.search_run import BATCH_SIZES
    from ...lightning_modules.common.suggestions import did_you_mean

    known = {item.name for item in fields(Seq2SeqTrainingArguments)} if plan.values_as == "arguments" else set()
    for name in (one.name for one in plan.space if known and one.name not in known):
        print(
            f"{name} is no training argument.{did_you_mean(name, known)} The script gets it as --{name}.",
            file=sys.stderr,
        )
    sizes = [one.name for one in plan.space if one.name in BATCH_SIZES and not one.is_constant]
    if sizes and plan.pruner != "none" and plan.pruning_unit == "steps":
        said = f"The space has {' and '.join(sizes)}, and the pruner compares trials at the same optimizer step"
        print(f"{said}, after different amounts of data. Pass --pruning-unit epochs.", file=sys.stderr)


def _run(plan: SweepPlan) -> int:
    from ...facade.search.storages import StorageError

    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        set_objective(plan)
        return Sweep(plan).run()
    except (SweepError, StorageError, ImportError, ValueError, OSError) as error:
        print(f"lightrainer sweep: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. The same command goes on from here.", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
