"""Run a script with a modified Trainer, for the commands `evaluate` and `lr-find`.

This file is used in two ways. The command imports it as a module. Each Python process of the script
also runs it at startup: the `sitecustomize` of `interception/children` executes it under the name
`lightrainer_recorder`. It then calls only `_patch_modules`, which patches the classes of the
Trainer API once the script has imported them.
"""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import functools
import importlib
import json
import os
import shlex
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

- `module`: the module of the command, which has a function `change(trainer_class, settings)`.
- `arguments`: the training arguments to override.
- `result`: the path of the result file.
- All other entries are settings of the command.
"""
QUIET = {
    "report_to": "none",
    "push_to_hub": False,
    "save_strategy": "no",
    "load_best_model_at_end": False,
}
"""Training arguments that make a run save, report and upload nothing."""


def read_options(parser: CommandParser, words: Sequence[str]) -> Namespace:
    """Parse a command line that ends with a script and its arguments.

    Args:
        parser: has the options of the command; the launcher, script and arguments are added.
        words: the words of the command line. Errors exit with status 2.
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
    """Warn on stderr if arguments for the script have the name of an option of the command.

    Args:
        command: the name of the command.
        options: the options of the command, including those that `read_options` adds.
    """
    # These three are positional arguments of the command, so the script may have options with these
    # names.
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
) -> tuple[dict[str, Any] | None, int]:
    """Run a script with a modified Trainer and a scratch output folder; its output goes to stderr.

    Args:
        command: the name of the command, and of its module in this folder.
        options: the options of the command, including those that `read_options` adds.
        arguments: training arguments to override in addition to `QUIET`.
        settings: passed to the function `change` of the module.

    Returns:
        The result that `write_result` wrote, or None; and the exit status of the command: 1 if the
        script failed or has no result, in which case the reason goes to stderr.
    """
    from ..interception import environment
    from .watched_script import call_watched

    warn_of_ambiguous_options(command, options)
    with tempfile.TemporaryDirectory(prefix=f"lightrainer-{command}-") as folder:
        result = Path(folder, "result.json")
        output_dir = os.path.join(folder, "output")
        settings["module"] = f"{__package__}.{command.replace('-', '_')}"
        settings["result"] = str(result)
        settings["arguments"] = {**QUIET, "output_dir": output_dir, **arguments}

        # The Python processes of the script read the settings from their environment.
        variables = dict(os.environ)
        environment.switch_on(variables)
        environment.choose_keras_backend(variables)
        variables[environment.RECORDER] = __file__
        variables[VARIABLE] = json.dumps(settings)

        start = shlex.split(options.launcher) or [sys.executable]
        words = [*start, options.script, *options.words]
        # Send the script's standard output to file descriptor 2, which is stderr.
        status = call_watched(words, scratch=folder, env=variables, stdout=2)
        recorded = None
        if result.exists():
            recorded = json.loads(result.read_text(encoding="utf-8"))

    if recorded is not None and status == 0:
        return recorded, 0
    problem = f"failed (exit status {status})"
    if status == 0:
        problem = "exited without a Trainer that trains or evaluates"
    print(f"lightrainer {command}: {options.script} {problem}.", file=sys.stderr)
    return recorded, 1


def write_result(trainer: Trainer, settings: dict[str, Any], result: dict[str, Any]) -> None:
    """Write the result of a modified run, on rank 0 only."""
    from ..callbacks._files import write_atomically

    if trainer.is_world_process_zero():
        write_atomically(settings["result"], json.dumps(result).encode())


def _change_arguments(settings: dict[str, Any], module: ModuleType) -> None:
    """Override the training arguments of the script with those of the settings."""
    original = module.TrainingArguments.__post_init__

    @functools.wraps(original)
    def __post_init__(args: TrainingArguments) -> None:  # noqa: N807 - replaces that method
        vars(args).update(settings["arguments"])
        original(args)

    module.TrainingArguments.__post_init__ = __post_init__


def _change_trainer(settings: dict[str, Any], module: ModuleType) -> None:
    """Call the function of the command that modifies the Trainer."""
    command_module = importlib.import_module(settings["module"])
    command_module.change(module.Trainer, settings)


def _patch_modules() -> None:
    """Patch the classes of the Trainer API when the script imports them."""
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
