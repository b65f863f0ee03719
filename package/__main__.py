"""The command line of lightrainer, which runs a command or a script.

For example: `python -m lightrainer script.py`.
"""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import os
import select
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, TextIO

from . import __version__


class _Command(NamedTuple):
    """A command. Its function has the same name, with underscores instead of dashes."""

    module: str
    description: str


_COMMANDS = {
    "run": _Command(
        "interception.runner",
        "run a script with the Trainer of lightrainer; `run` itself may be left out",
    ),
    "launch": _Command(
        "tools.launch", "run a script in several processes, as `accelerate launch` does"
    ),
    "sweep": _Command("tools.sweep.command", "run a script many times to find its best arguments"),
    "compare": _Command(
        "tools.compare.command",
        "run a script with transformers and with lightrainer, and show the differences",
    ),
    "evaluate": _Command(
        "tools.evaluate",
        "run a script so that its Trainer evaluates a checkpoint, and print the metrics",
    ),
    "lr-find": _Command(
        "tools.lr_find", "run a script with a growing learning rate, and suggest a rate"
    ),
    "profile": _Command(
        "tools.profile", "run a script for some steps, and show where the time is spent"
    ),
    "plan": _Command("tools.plan", "show how training arguments map to Lightning"),
    "estimate": _Command("tools.estimate.command", "estimate the memory of a training"),
    "convert": _Command(
        "tools.convert", "convert a checkpoint file of Lightning into a folder, or back"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, see `_run`.

    Exit quietly when the reader of the output closes the pipe, as `head` does after some lines.
    """
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _is_closed(sys.stdout):
            raise
        # Python flushes the output again when it exits, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _is_closed(stream: TextIO) -> bool:
    """Return whether the reader of a pipe has closed it.

    A BrokenPipeError alone is not enough, because a command may also lose another connection.
    """
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return bool(poll.poll(0))


def _run(argv: Sequence[str] | None) -> int:
    """Run the command line; transformers has no counterpart.

    Args:
        argv: the arguments of the program; None reads them from `sys.argv`.

    Returns:
        The exit status. A script replaces this process, so then the status is the script's.

    Raises:
        SystemExit: the command line is invalid, with status 2 and the reason on stderr; or `--help`
            was passed, with status 0.
    """
    from .lightning_modules.common.redaction import secret_words

    words = secret_words(sys.argv[1:] if argv is None else argv)
    if words and _names_a_script(words[0]):
        return _start("run", words)
    if words[:1] == ["run"]:
        return _start("run", words[1:])

    # This parser reads only the name of a command. The remaining words go to the command's own
    # parser, whose module is imported on use.
    parser = ArgumentParser(
        prog="lightrainer",
        description="The documented Trainer API over PyTorch Lightning.",
        epilog=(
            "Any other word is a script to run: lightrainer script.py. See `lightrainer run "
            "--help`."
        ),
    )
    parser.add_argument("--version", action="version", version=f"lightrainer {__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True
    )
    for name, entry in _COMMANDS.items():
        commands.add_parser(name, add_help=False, help=entry.description)
    if words and not words[0].startswith("-") and words[0] not in _COMMANDS:
        from .lightning_modules.common.suggestions import did_you_mean

        parser.error(
            f"{words[0]!r} is neither a command nor a script.{did_you_mean(words[0], _COMMANDS)} "
            f"Commands: {', '.join(_COMMANDS)}."
        )
    options, command_words = parser.parse_known_args(words)
    return _start(options.command, command_words)


def _names_a_script(word: str) -> bool:
    """Return whether the first word is a script, or an option that goes before a script."""
    if word in _COMMANDS or word in ("-h", "--help"):
        return False
    if not word.startswith("-"):
        return "." in word or os.path.exists(word)

    # `-`, `-m` and `-c` mean the same as for Python.
    from .interception.runner import is_option

    return word == "-" or word[:2] in ("-m", "-c") or is_option(word)


def _start(command: str, words: Sequence[str]) -> int:
    """Call the function of a command, and return the exit status."""
    module = import_module(f".{_COMMANDS[command].module}", __package__)
    function = getattr(module, command.replace("-", "_"))
    return function(words)


if __name__ == "__main__":
    sys.exit(main())
