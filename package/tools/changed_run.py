"""Runs of a script whose Trainer does something else than train, in a scratch folder: `evaluate`,
`lr-find`.

This file is also what Python processes of the script run at their start, by the `sitecustomize` of
`interception/children`: it changes the classes of the Trainer API once the script has imported
them.
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
from argparse import REMAINDER, Namespace
from pathlib import Path
from typing import Any

VARIABLE = "LIGHTRAINER_CHANGED_RUN"
"""Holds the settings as JSON: `module`, which has `change(trainer_class, settings)`,
`arguments`, `result`, ...
"""
QUIET = {
    "report_to": "none",
    "push_to_hub": False,
    "save_strategy": "no",
    "load_best_model_at_end": False,
}


def add_script(parser: Any) -> None:
    """Add the launcher, the script, and its arguments to a parser."""
    launcher = "what starts the script, such as 'torchrun --nproc_per_node=2'; by default Python"
    parser.add_argument("--launcher", default="", metavar="COMMAND", help=launcher)
    parser.add_argument("script", metavar="SCRIPT", help="the script, a Python file")
    parser.add_argument("words", metavar="ARGUMENTS", nargs=REMAINDER, help="those of the script")


def note_options_of_script(command: str, given: Namespace) -> None:
    """Report the words after the script that have the name of an option of the command.

    Args:
        command: its name.
        given: its options, with those of `add_script`.
    """
    own = {f"--{name}" for name in vars(given)} - {"--checkpoint", "--script", "--words"}
    meant = [word.partition("=")[0] for word in given.words]
    taken = [name for name in meant if name in own]
    if taken:
        print(
            f"lightrainer {command}: {', '.join(taken)} is passed to {given.script}, as it follows "
            f"the script. Options of lightrainer {command} go before the script.",
            file=sys.stderr,
        )


def run_changed(
    command: str, given: Any, arguments: dict[str, Any], **settings: Any
) -> dict[str, Any] | None:
    """Run a script with a changed Trainer; what it prints goes to stderr.

    Args:
        command: the command, and the module in this folder.
        given: options of `add_script`.
        arguments: training arguments beside `QUIET`; `output_dir` is a scratch folder.
        settings: further ones, for `change`.

    Returns:
        The result that `write_result` wrote; None, with the reason on stderr, if there is none.
    """
    from ..interception import environment

    note_options_of_script(command, given)
    variables = {**os.environ, environment.RECORDER: __file__}
    environment.switch_on(variables)
    environment.choose_keras_backend(variables)
    with tempfile.TemporaryDirectory(prefix=f"lightrainer-{command}-") as folder:
        result = Path(folder, "result.json")
        settings |= {"module": f"{__package__}.{command.replace('-', '_')}", "result": str(result)}
        settings["arguments"] = {
            **QUIET,
            "output_dir": os.path.join(folder, "output"),
            **arguments,
        }
        start = shlex.split(given.launcher) or [sys.executable]
        words = [*start, given.script, *given.words]
        try:
            code = subprocess.call(
                words, env={**variables, VARIABLE: json.dumps(settings)}, stdout=2
            )
        except OSError as error:
            code = error
        if result.exists():
            return json.loads(result.read_text(encoding="utf-8"))
    why = (
        f"failed ({code if isinstance(code, OSError) else f'exit status {code}'})"
        if code
        else "ended without a Trainer that trains or evaluates"
    )
    print(f"lightrainer {command}: {given.script} {why}.", file=sys.stderr)
    return None


def write_result(trainer: Any, settings: dict[str, Any], result: dict[str, Any]) -> None:
    """Write the result, in the first process."""
    if trainer.is_world_process_zero():
        Path(settings["result"]).write_text(json.dumps(result), encoding="utf-8")


def _change_arguments(settings: dict[str, Any], module: Any) -> None:
    made = module.TrainingArguments.__post_init__

    @functools.wraps(made)
    def __post_init__(args: Any) -> None:  # noqa: N807 - replaces that method
        vars(args).update(settings["arguments"])
        made(args)

    module.TrainingArguments.__post_init__ = __post_init__


def _change_trainer(settings: dict[str, Any], module: Any) -> None:
    importlib.import_module(settings["module"]).change(module.Trainer, settings)


if __name__ == "lightrainer_recorder":
    from lightrainer.tools.compare.recorder import MODULES, PatchingFinder

    found = json.loads(os.environ[VARIABLE])
    changes = (functools.partial(act, found) for act in (_change_arguments, _change_trainer))
    sys.meta_path.insert(0, PatchingFinder(dict(zip(MODULES["lightrainer"], changes, strict=True))))
