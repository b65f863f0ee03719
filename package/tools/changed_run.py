"""Runs of a script whose Trainer does something else than train: `evaluate`, `lr-find`.

This file has two users. The command imports it as a module. Each Python process of the script also
runs it as a start-up file: the `sitecustomize` of `interception/children` executes it under the
name `lightrainer_recorder`, and then only `_patch_modules` is called, which changes the classes of
the Trainer API once the script has imported them.
"""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import functools
import importlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from ..facade import Trainer, TrainingArguments
    from .command_line import CommandParser

VARIABLE = "LIGHTRAINER_CHANGED_RUN"
"""Environment variable with the settings as JSON.

- `module`: the module of the command; it has a function `change(trainer_class, settings)`.
- `arguments`: the training arguments to set.
- `result`: the file for the result.
- Further entries are settings of the command.
"""
QUIET = {
    "report_to": "none",
    "push_to_hub": False,
    "save_strategy": "no",
    "load_best_model_at_end": False,
}
"""Training arguments of such a run, which leaves no traces."""


def read_options(parser: CommandParser, words: Sequence[str]) -> Namespace:
    """Parse a command line that ends with a script and its arguments.

    Args:
        parser: with the options of the command; gets the launcher, the script and its arguments.
        words: the words of the command line; errors end the program with status 2.
    """
    parser.add_argument(
        "--launcher",
        default="",
        metavar="COMMAND",
        help="command that starts the script, e.g. 'torchrun --nproc_per_node=2' (Python)",
    )
    parser.add_script()
    options = parser.parse_args(words)
    if not os.path.isfile(options.script):
        parser.error(f"the script {options.script} does not exist.")
    return options


def warn_of_ambiguous_options(command: str, options: Namespace) -> None:
    """Warn on stderr of arguments for the script that have the name of an option of the command.

    Args:
        command: the name of the command.
        options: its options, with those of `read_options`.
    """
    # These three are positional arguments of the command, so the script's options may be so called.
    own_options = {f"--{name}" for name in vars(options)} - {"--checkpoint", "--script", "--words"}
    ambiguous = []
    for word in options.words:
        name = word.partition("=")[0]
        if name in own_options:
            ambiguous.append(name)
    if ambiguous:
        print(
            f"lightrainer {command}: {', '.join(ambiguous)} is passed to {options.script}, because "
            f"it follows the script. Options of lightrainer {command} go before the script.",
            file=sys.stderr,
        )


def run_changed(
    command: str, options: Namespace, arguments: dict[str, Any], **settings: object
) -> dict[str, Any] | None:
    """Run a script with a changed Trainer, in a scratch folder; its output goes to stderr.

    Args:
        command: the name of the command, which is also that of its module in this folder.
        options: the options of the command, with those of `read_options`.
        arguments: training arguments, in addition to `QUIET`.
        settings: passed to `change` of the module.

    Returns:
        The result that `write_result` wrote; None without one, with the reason on stderr.
    """
    from ..interception import environment

    warn_of_ambiguous_options(command, options)
    with tempfile.TemporaryDirectory(prefix=f"lightrainer-{command}-") as folder:
        result = Path(folder, "result.json")
        output_dir = os.path.join(folder, "output")
        settings["module"] = f"{__package__}.{command.replace('-', '_')}"
        settings["result"] = str(result)
        settings["arguments"] = {**QUIET, "output_dir": output_dir, **arguments}

        # The Python processes of the script find everything in their environment.
        variables = dict(os.environ)
        environment.switch_on(variables)
        environment.choose_keras_backend(variables)
        variables[environment.RECORDER] = __file__
        variables[VARIABLE] = json.dumps(settings)

        start = shlex.split(options.launcher) or [sys.executable]
        words = [*start, options.script, *options.words]
        try:
            # File descriptor 2 is stderr.
            status = subprocess.call(words, env=variables, stdout=2)
        except OSError as error:
            problem = f"failed ({error})"
        else:
            problem = f"failed (exit status {status})"
            if status == 0:
                problem = "exited without a Trainer that trains or evaluates"
        if result.exists():
            return json.loads(result.read_text(encoding="utf-8"))
    print(f"lightrainer {command}: {options.script} {problem}.", file=sys.stderr)
    return None


def write_result(trainer: Trainer, settings: dict[str, Any], result: dict[str, Any]) -> None:
    """Write the result of a changed run, in process 0."""
    if trainer.is_world_process_zero():
        Path(settings["result"]).write_text(json.dumps(result), encoding="utf-8")


def _change_arguments(settings: dict[str, Any], module: ModuleType) -> None:
    """Set the training arguments of the settings, whatever the script passes."""
    original = module.TrainingArguments.__post_init__

    @functools.wraps(original)
    def __post_init__(args: TrainingArguments) -> None:  # noqa: N807 - replaces that method
        vars(args).update(settings["arguments"])
        original(args)

    module.TrainingArguments.__post_init__ = __post_init__


def _change_trainer(settings: dict[str, Any], module: ModuleType) -> None:
    """Let the module of the command change the Trainer."""
    command_module = importlib.import_module(settings["module"])
    command_module.change(module.Trainer, settings)


def _patch_modules() -> None:
    """Change the classes when the script imports them."""
    from lightrainer.tools.compare.recorder import MODULES, PatchingFinder

    settings = json.loads(os.environ[VARIABLE])
    arguments_module, trainer_module = MODULES["lightrainer"]
    patches = {
        arguments_module: functools.partial(_change_arguments, settings),
        trainer_module: functools.partial(_change_trainer, settings),
    }
    sys.meta_path.insert(0, PatchingFinder(patches))


if __name__ == "lightrainer_recorder":
    _patch_modules()
