"""Run a script under import interception: `python -m lightrainer script.py`.

The process is replaced by a plain Python whose environment switches the interception on. So
`__main__`, `sys.argv`, `sys.path`, tracebacks, signals, exit codes and spawned workers are those of
a script run by Python itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from . import environment

_USAGE = """\
usage: python -m lightrainer [OPTIONS] SCRIPT [ARGUMENTS]
       python -m lightrainer [OPTIONS] -m MODULE [ARGUMENTS]
       python -m lightrainer [OPTIONS] -c CODE [ARGUMENTS]

Run a script, unchanged, with the Trainer of lightrainer in the place of that of transformers.
`lightrainer run` is the same, and reaches scripts that are called like a command.

options:
  --verbose   say at the end, on stderr, which names were served, and from where
  --dry-run   print the plan of the first Trainer that is to train, evaluate or predict, and end
  before the first step
  --keras-backend {torch,tensorflow}
              what models of Keras compute in; by default KERAS_BACKEND, and torch where that is not
              set
  -h, --help  show this text
"""

_FLAGS = ("--verbose", "--dry-run", "-h", "--help")
_KERAS_BACKEND = "--keras-backend"


def run(words: Sequence[str]) -> int:
    """Run the script that the command line names; there is no such command in the reference.

    Args:
        words: Options of the runner, then a script, `-m` and a module, `-c` and code, or `-` for
            the standard input; then the arguments.

    Returns:
        The exit status of a wrong command line; otherwise it does not return.
    """
    try:
        options, rest = _options(words)
    except ValueError as error:
        return _complain(str(error))
    if options.keys() & {"-h", "--help"}:
        print(_USAGE, end="")
        return 0
    problem = _problem(rest)
    if problem:
        return _complain(problem)
    environment.switch_on(os.environ)
    environment.choose_keras_backend(os.environ, options.get("--keras-backend"))
    if "--verbose" in options:
        os.environ[environment.VERBOSE] = str(os.getpid())
    if "--dry-run" in options:
        os.environ[environment.DRY_RUN] = "1"
    return become([sys.executable, *python_options(words), *rest])


def is_option(word: str) -> bool:
    """Return True for an option of the runner."""
    return word.partition("=")[0] in (*_FLAGS, _KERAS_BACKEND)


def _options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options of the runner with their values, and the words that follow them."""
    rest = list(words)
    options = {}
    while rest and is_option(rest[0]):
        name, given, value = rest.pop(0).partition("=")
        if name == _KERAS_BACKEND:
            value = value if given else rest.pop(0) if rest else ""
            if value not in environment.KERAS_BACKENDS:
                choices = " or ".join(environment.KERAS_BACKENDS)
                raise ValueError(f"{name} {value!r} is not a backend: write {choices}.")
        elif given:
            raise ValueError(f"{name} has no value: leave out ={value}.")
        options[name] = value
    return options, rest


def _complain(problem: str) -> int:
    print(f"lightrainer: {problem}\n\n{_USAGE}", end="", file=sys.stderr)
    return 2


def _problem(rest: Sequence[str]) -> str | None:
    if not rest or (rest[0] in ("-m", "-c") and len(rest) == 1):
        return "the command line names no script to run."
    if rest[0].startswith("-") and rest[0][:2] not in ("-m", "-c") and rest[0] != "-":
        return f"unknown option {rest[0].partition('=')[0]}. Options of the script follow its name."
    if sys.flags.ignore_environment or sys.flags.no_site:
        return (
            "Python was started with -E, -I or -S: leave that out, or call lightrainer.install() "
            "in the script."
        )
    return None


def python_options(words: Sequence[str]) -> list[str]:
    """Return the options that the running Python was started with, such as `-u` and `-X dev`.

    Args:
        words: The words of the command line that follow the program's name.
    """
    command = list(sys.orig_argv[1:])
    if not words or command[-len(words) :] != list(words):
        return []  # called from within another program
    command = command[: -len(words)]
    if command and command[-1] == "run":  # `lightrainer run`
        command.pop()
    if not command:
        return []
    last = command.pop()
    if not last.startswith("-"):  # a script, or the module that follows -m
        module = (
            bool(command)
            and command[-1].startswith("-")
            and command[-1].endswith("m")
            and last == "lightrainer"
        )
        return _without_m(command) if module else command
    return [*command, *_without_m([last.partition("m")[0] + "m"])]  # `-mlightrainer`


def _without_m(command: list[str]) -> list[str]:
    *rest, last = command
    return rest if last == "-m" else [*rest, last[:-1]]


def become(command: list[str]) -> int:
    """Replace this process by a command; on Windows run it, and return its exit status."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "nt":  # there, the shell would take the replaced process for done
        import subprocess

        return subprocess.call(command)
    os.execv(command[0], command)
