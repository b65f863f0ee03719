"""Command line of lightrainer; without a command it runs a script:
`python -m lightrainer script.py`.
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
from typing import TextIO

from . import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and end quietly where the reader of its output has closed it, as
    `head` does. See `_run`.
    """
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _is_closed(sys.stdout):
            raise
        # Python flushes the output again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _is_closed(stream: TextIO) -> bool:
    """Return whether the other end of a pipe is closed, rather than that of another connection."""
    ends = select.poll()
    ends.register(stream.fileno(), 0)
    return bool(ends.poll(0))


def _run(argv: Sequence[str] | None) -> int:
    """Run the command line; transformers has no counterpart.

    Args:
        argv: The words after the program's name; by default those this program was started with.

    Returns:
        The exit status. A script that is started takes the place of this process, and its status is
        the script's.

    Raises:
        SystemExit: With status 2 and the reason on stderr for a wrong command line; with 0 after
            `--help`.
    """
    from .lightning_modules.common.redaction import secret_words

    words = argv = secret_words(sys.argv[1:] if argv is None else argv)
    if words and _names_a_script(words[0]):
        words.insert(0, "run")
    if words[:1] == ["run"]:
        return _start("run", words[1:])
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
    # A parser of the command, which is only built for it, reads what follows.
    for name, (_, text) in _COMMANDS.items():
        commands.add_parser(name, add_help=False, help=text)
    if words and not words[0].startswith("-") and words[0] not in _COMMANDS:
        from .lightning_modules.common.suggestions import did_you_mean

        parser.error(
            f"{words[0]!r} is neither a command nor a script.{did_you_mean(words[0], _COMMANDS)} "
            f"Commands: {', '.join(_COMMANDS)}."
        )
    known, flags = parser.parse_known_args(words)
    return _start(known.command, flags)


def _names_a_script(word: str) -> bool:
    """Return True if the first word starts a script: a file, an option of `run`, or one of
    Python's own.
    """
    if word.startswith("-"):
        from .interception.runner import is_option

        return (
            word == "-"
            or word[:2] in ("-m", "-c")
            or (word not in ("-h", "--help") and is_option(word))
        )
    return word not in _COMMANDS and ("." in word or os.path.exists(word))


def _start(name: str, words: Sequence[str]) -> int:
    """Import the module of a command, call its function of that name, and return the exit
    status.
    """
    module, _ = _COMMANDS[name]
    return getattr(import_module(f".{module}", __package__), name.replace("-", "_"))(words)


_COMMANDS = {
    "run": (
        "interception.runner",
        "run a script with our Trainer; the word itself can be left out",
    ),
    "launch": ("tools.launch", "run a script in several processes, as `accelerate launch` does"),
    "sweep": ("tools.sweep.command", "run a script many times, to find its best arguments"),
    "compare": (
        "tools.compare.command",
        "run a script with transformers and with ours, show what differs",
    ),
    "evaluate": (
        "tools.evaluate",
        "run a script so that its Trainer evaluates a checkpoint, and print the metrics",
    ),
    "lr-find": ("tools.lr_find", "run a script with a growing learning rate, and suggest one"),
    "profile": ("tools.profile", "run a script for some steps, and show where their time goes"),
    "plan": ("tools.plan", "show what Lightning is given for some training arguments"),
    "estimate": (
        "tools.estimate.command",
        "show how much memory and traffic a training will need",
    ),
    "convert": ("tools.convert", "turn a checkpoint file of Lightning into a folder, or back"),
}
"""The commands: module, help."""


if __name__ == "__main__":
    sys.exit(main())
