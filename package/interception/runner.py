"""Run a script under import interception: `python -m lightrainer script.py`.

The process is replaced by a plain Python process whose environment switches the interception on. So
`__main__`, `sys.argv`, `sys.path`, tracebacks, signals, exit codes and spawned workers are the same
as when Python itself runs the script.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from . import environment

_USAGE = """\
usage: python -m lightrainer [OPTIONS] SCRIPT [ARGUMENTS]
       python -m lightrainer [OPTIONS] -m MODULE [ARGUMENTS]
       python -m lightrainer [OPTIONS] -c CODE [ARGUMENTS]

Run a script, unchanged, with the Trainer of lightrainer instead of that of
transformers. `lightrainer run` is the same, and also runs scripts that have the
name of a command.

options:
  --dry-run   print the plan of the first Trainer that would train, evaluate or
              predict, and exit before the first step
  --keras-backend {torch,tensorflow}
              backend of Keras models; by default KERAS_BACKEND, or torch if that
              is not set
  -h, --help  show this help
"""

_FLAGS = ("--dry-run", "-h", "--help")
_KERAS_BACKEND = "--keras-backend"


def run(words: Sequence[str]) -> int:
    """Run the script that the command line names; transformers has no counterpart.

    Args:
        words: options of the runner, then a script, `-m` and a module, `-c` and code, or `-` for
            the standard input; then the arguments.

    Returns:
        The exit status of `--help` or an invalid command line; otherwise the script replaces this
        process.
    """
    try:
        options, script_words = _read_options(words)
    except ValueError as error:
        return _fail(str(error))
    if "-h" in options or "--help" in options:
        print(_USAGE, end="")
        return 0
    problem = _problem(script_words)
    if problem is not None:
        return _fail(problem)

    # The new process reads the options from its environment.
    environment.switch_on(os.environ)
    environment.choose_keras_backend(os.environ, options.get(_KERAS_BACKEND))
    if "--dry-run" in options:
        os.environ[environment.DRY_RUN] = "1"
    return become([sys.executable, *python_options(), *script_words])


def is_option(word: str) -> bool:
    """Return whether a word is an option of the runner."""
    return word.partition("=")[0] in (*_FLAGS, _KERAS_BACKEND)


def _read_options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options of the runner with their values, and the words that follow them.

    The value of a flag is an empty string.

    Raises:
        ValueError: an option has an invalid value.
    """
    remaining = list(words)
    options = {}
    while remaining and is_option(remaining[0]):
        name, equals_sign, value = remaining.pop(0).partition("=")
        if name == _KERAS_BACKEND:
            # The value may also be the next word.
            if not equals_sign and remaining:
                value = remaining.pop(0)
            if value not in environment.KERAS_BACKENDS:
                choices = " or ".join(environment.KERAS_BACKENDS)
                raise ValueError(f"{name} {value!r} is not a backend. Choose {choices}.")
        elif equals_sign:
            raise ValueError(f"{name} takes no value: leave out ={value}.")
        options[name] = value
    return options, remaining


def _fail(problem: str) -> int:
    """Print a problem with the command line, and return the exit status."""
    print(f"lightrainer: {problem}\n\n{_USAGE}", end="", file=sys.stderr)
    return 2


def _problem(script_words: Sequence[str]) -> str | None:
    """Return the reason why a script cannot be run; None if it can.

    Args:
        script_words: the words after the options of the runner.
    """
    first = script_words[0] if script_words else ""
    if not script_words or (first in ("-m", "-c") and len(script_words) == 1):
        return "the command line has no script to run."
    if first.startswith("-") and first != "-" and first[:2] not in ("-m", "-c"):
        option = first.partition("=")[0]
        return f"unknown option {option}. Options of the script follow its name."
    if sys.flags.ignore_environment or sys.flags.no_site:
        return (
            "Python was started with -E, -I or -S, which disables the interception of imports: "
            "leave that out, or call lightrainer.install() in the script."
        )
    return None


def python_options() -> list[str]:
    """Return the options that the running Python was started with, such as `-u` and `-X dev`."""
    # multiprocessing uses this private function for its processes; it leaves out `-u`.
    options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] - private
    if getattr(sys.stdout, "write_through", False):
        options.append("-u")
    return options


def become(command: list[str]) -> int:
    """Replace this process by a command; on Windows run the command and return its exit status."""
    sys.stdout.flush()
    sys.stderr.flush()
    # `execv` on Windows starts a new process and exits, so the shell would not wait for the script.
    if os.name == "nt":
        return subprocess.call(command)
    os.execv(command[0], command)
