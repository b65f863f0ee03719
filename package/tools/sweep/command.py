"""`python -m lightrainer sweep script.py --space space.yaml`: a Trainer script, unchanged, as a sweep of optuna."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import argparse
import ast
import itertools
import os
import shlex
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from ..number_options import positive, whole

_DESCRIPTION = """\
Run a script with a Trainer, or with one of Lightning, many times, each time with other values, to find the best. The
script is not changed: TrainingArguments take the values up by themselves, whatever the script passes; parameters that
are no training arguments are added to its command line, as --name value. Each run has the folder run-<number> in its
output_dir. Stop it at any time, and start it again with the same command: it goes on where it was.
"""
_EPILOG = """\
The values, in YAML (or the same in JSON):

{}
What follows -- is passed on to the script; {{run}} in it becomes the name of the trial, such as run-3.

Example: lightrainer sweep train.py --space space.yaml --n-trials 50 --workers 2 --pruner median -- --epochs 3
"""


def sweep(flags: Sequence[str]) -> int:
    """Run the command line of a sweep; there is no such command in the reference.

    Args:
        flags: The words after `sweep`.

    Returns:
        0 if a trial was completed, 1 if none was, 130 after an interrupt.

    Raises:
        SystemExit: With status 2 and the reason on stderr where something cannot be; nothing is begun then.
    """
    from ...lightning_modules.common.redaction import secret_words
    from ...lightning_modules.common.suggestions import did_you_mean

    parser = _parser()
    words = secret_words(flags)
    cut = words.index("--") if "--" in words else len(words)
    options, unknown = parser.parse_known_args(words[:cut])
    if unknown:
        near = did_you_mean(unknown[0].partition("=")[0], parser._option_string_actions)
        parser.error(f"{unknown[0]} is no option of the sweep.{near} What is for the script follows --.")
    try:
        plan = _plan(options, words[cut + 1 :])
    except (ValueError, TypeError, OSError, ImportError, SyntaxError) as error:
        parser.error(str(error))
    return _run(plan)


def _parser() -> argparse.ArgumentParser:
    from .space import EXAMPLE

    parser = argparse.ArgumentParser(
        prog="lightrainer sweep",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(textwrap.indent(EXAMPLE, "  ")),
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_options_of_the_search(parser.add_argument)
    _add_options_of_the_run(parser.add_argument)
    return parser


def _add_options_of_the_search(add: Callable[..., Any]) -> None:
    """What is tried, and what is made of it."""
    several = (
        "what is optimized; again for another objective. By default what the script itself calls best, which it is run "
        "for until it has made its TrainingArguments: metric_for_best_model, or eval_loss"
    )
    direction = "minimize or maximize, one for each metric; by default what is usual for that"
    unit = "what the pruner compares trials at: steps, or completed epochs (%(default)s)"
    count = "trials of the study, earlier ones included (20; of a grid all points)"
    values = (
        "how the script gets them: arguments (see above), options (--name value, also for LightningCLI), overrides "
        "(name=value, for Hydra), environment (variables) (%(default)s)"
    )
    training = "which call of train() counts in a script with several; by default the last one that evaluates"
    pruners = "none, median, halving, hyperband, percentile, ...; or median:n_startup_trials=3 (%(default)s)"
    add("script", help="the script, a Python file")
    add("--space", required=True, metavar="FILE", help="YAML or JSON: the values to try, for each parameter")
    add("--n-trials", type=whole(), metavar="N", help=count)
    add("--values-as", choices=("arguments", "options", "overrides", "environment"), default="arguments", help=values)
    add("--metric", "--objective", dest="metric", action="append", default=[], metavar="NAME", help=several)
    add("--direction", action="append", metavar="WORD", help=direction)
    add(
        "--value",
        choices=("last", "best"),
        default="last",
        help="which evaluation of the training counts (%(default)s)",
    )
    add("--training", type=whole(), metavar="N", help=training)
    add("--pruner", default="none", metavar="NAME", help=pruners)
    add("--pruning-unit", choices=("steps", "epochs"), default="steps", help=unit)
    add("--sampler", default="tpe", metavar="NAME", help="tpe, random, grid, cmaes, gp, qmc, nsgaii (%(default)s)")
    add("--seed", type=whole(0, 2**32 - 1), metavar="N", help="of the sampler")


def _add_options_of_the_run(add: Callable[..., Any]) -> None:
    """Where the study is kept, and how its trials are run."""
    storages = "sqlite:///..., postgresql://..., mysql://..., or a journal file; by default study.db in the folder"
    retries = "how often a trial is begun again whose process was killed (%(default)s)"
    failures = "give up after so many failures before the first completed trial (%(default)s)"
    alive = (
        "how often a worker says that it is alive, in a database; silent for twice as long, it is taken for killed "
        "(%(default)s)"
    )
    launcher = "what starts the script, such as 'torchrun --nproc_per_node=2'; by default Python"
    add("--workers", type=whole(), default=1, metavar="N", help="how many run at the same time (%(default)s)")
    add("--storage", metavar="ADDRESS", help=storages)
    add("--study-name", metavar="NAME", help="by default the name of the script")
    add("--folder", metavar="FOLDER", help="for logs and report; by default sweeps/<name of the study>")
    add("--timeout", type=positive, metavar="SECONDS", help="begin no trial after that")
    add("--max-retry", type=whole(0), default=3, metavar="N", help=retries)
    add("--max-failures", type=whole(), default=3, metavar="N", help=failures)
    add("--retry-failed", action="store_true", help="run trials that failed in an earlier start once more")
    add("--heartbeat", type=positive, default=60, metavar="SECONDS", help=alive)
    add("--launcher", default="", metavar="COMMAND", help=launcher)
    add("--remove-pruned", action="store_true", help="remove the folders of pruned trials")


def _plan(options: argparse.Namespace, passed_on: list[str]) -> Any:
    """Check everything, before anything is written."""
    from ...callbacks._files import is_folder_name
    from ...facade import Seq2SeqTrainingArguments
    from ...facade.search.hyperparameter_search import read_options
    from ...facade.search.metric_objective import directions_of
    from ...facade.search.samplers import make_pruner, make_sampler
    from ...lightning_modules.common.local_paths import require_local
    from .plan import SweepPlan
    from .space import check_values, grid, read_space

    if not os.path.isfile(options.script):
        raise FileNotFoundError(f"{options.script}: there is no such script.")
    require_local(options.folder, "--folder")
    metrics: list[str] = options.metric
    directions = options.direction or directions_of(metrics, "--direction", "--metric")
    if options.direction and len(directions) != len(metrics or ["the script's"]):
        raise ValueError(f"There are {len(metrics)} --metric and {len(directions)} --direction: give one for each.")
    space = read_space(options.space)
    if options.values_as == "arguments":
        check_values(space, Seq2SeqTrainingArguments)
        _warn_what_is_an_option([dimension.name for dimension in space])
    points = grid(space) if options.sampler == "grid" else []
    n_trials = min(options.n_trials or len(points) or 20, len(points) or sys.maxsize)
    read_options(n_trials, directions or ["minimize"], {})
    if len(metrics) > 1 and options.pruner != "none":
        raise ValueError("--pruner needs a single --metric: optuna prunes nothing where there are several objectives.")
    make_pruner(options.pruner)
    make_sampler(options.sampler, options.seed)
    name = options.study_name or Path(options.script).stem
    if not options.folder and not is_folder_name(name):
        raise ValueError(
            f"--study-name {name!r} cannot be the name of a folder in sweeps/, where logs and report would go. Take a "
            "plain name, without slashes, or say with --folder where they go."
        )
    folder = Path(options.folder or os.path.join("sweeps", name)).absolute()
    _require_folder(folder)
    if options.pruner != "none" and options.pruning_unit == "steps":
        _warn_of_steps([one.name for one in space if one.kind != "constant"])
    return SweepPlan(
        command=[*_launcher(options.launcher), options.script, *passed_on],
        space=space,
        values_as=options.values_as,
        flags={one.name for one in space if one.flag} | _flags_of(options.script),
        points=points,
        again=_options_of_one(options, metrics, directions),
        passed_on=passed_on,
        n_trials=n_trials,
        workers=options.workers,
        storage=options.storage,
        name=name,
        folder=folder,
        metrics=metrics,
        directions=directions,
        value=options.value,
        training=options.training,
        pruner=options.pruner,
        pruning_unit=options.pruning_unit,
        sampler=options.sampler,
        seed=options.seed,
        timeout=options.timeout,
        max_retry=options.max_retry,
        max_failures=options.max_failures,
        retry_failed=options.retry_failed,
        heartbeat=options.heartbeat,
        remove_pruned=options.remove_pruned,
    )


def _launcher(written: str) -> list[str]:
    """The words that start a script."""
    try:
        words = shlex.split(written) or [sys.executable]
    except ValueError as error:
        raise ValueError(f"--launcher {written}: {error}.") from None
    if shutil.which(words[0]) is None:
        raise FileNotFoundError(f"--launcher {written}: there is no program {words[0]!r}.")
    return words


def _options_of_one(options: argparse.Namespace, metrics: list[str], directions: list[str]) -> list[str]:
    """Return the words of a sweep with one trial that is run and judged as those of this one are."""
    named = [("--launcher", options.launcher), ("--values-as", options.values_as), ("--value", options.value)]
    named += [("--training", options.training), *zip(itertools.repeat("--metric"), metrics)]
    named += zip(itertools.repeat("--direction"), directions)
    return [options.script, "--n-trials", "1", *(str(word) for pair in named if pair[1] for word in pair)]


def _flags_of(script: str) -> set[str]:
    """Return the options without a value that a script declares to argparse, by `action="store_true"`."""
    calls = [one for one in ast.walk(ast.parse(Path(script).read_bytes(), script)) if isinstance(one, ast.Call)]
    flags = [one for one in calls if any(ast.unparse(word) == "action='store_true'" for word in one.keywords)]
    return {str(word.value).lstrip("-") for one in flags for word in one.args if isinstance(word, ast.Constant)}


def _require_folder(folder: Path) -> None:
    """Refuse a folder that is a file, or would have to be in one."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"--folder {folder}: {nearest} is a file. Logs and report need a folder.")
    if not os.access(nearest, os.W_OK):
        raise PermissionError(f"--folder {folder}: nothing can be written to {nearest}.")


def _warn_of_steps(names: list[str]) -> None:
    from ...facade.search.search_run import BATCH_SIZES

    sizes = [name for name in BATCH_SIZES if name in names]
    if sizes:
        print(
            f"The space has {' and '.join(sizes)}, and the pruner compares trials at the same optimizer step, at "
            "which they have seen different amounts of data. Pass --pruning-unit epochs to compare them by epoch.",
            file=sys.stderr,
        )


def _warn_what_is_an_option(names: list[str]) -> None:
    """A name that is misspelt would otherwise be found out by the script, if at all."""
    from dataclasses import fields

    from ...facade import Seq2SeqTrainingArguments
    from ...lightning_modules.common.suggestions import did_you_mean

    known = [item.name for item in fields(Seq2SeqTrainingArguments)]
    for name in names:
        outer, dot, inner = name.partition(".")
        if dot and outer in known:
            raise ValueError(
                f"The space has the nested name {name!r}. Training arguments are not reached inside: give {outer!r} as "
                f"a choice of texts, e.g. {outer}: ['{{\"{inner}\": 1}}', '{{\"{inner}\": 2}}']."
            )
        if name not in known:
            print(
                f"{name} is no training argument.{did_you_mean(name, known)} The script gets it as --{name}.",
                file=sys.stderr,
            )


def _run(plan: Any) -> int:
    from ...facade.search.storages import StorageError
    from .objective import settle
    from .script import SweepError
    from .workers import Sweep

    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        return Sweep(settle(plan)).run()
    except (SweepError, StorageError, ImportError, ValueError) as error:
        print(f"lightrainer sweep: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. The same command goes on from here.", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
