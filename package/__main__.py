"""The command line: `run` starts a script, `launch` in several processes, `sweep` many times, `compare` with the
reference and with ours; `plan` shows what Lightning is given, `estimate` what it will need, `convert` turns checkpoints
around.

Without one of these words it is `run`: `python -m lightrainer script.py`.
"""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from . import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; there is none in the reference.

    Args:
        argv: The words after the program's name; by default those this program was started with.

    Returns:
        The exit status. A script that is started takes the place of this process, and its status is the script's.

    Raises:
        SystemExit: With status 2 and the reason on stderr where something cannot be; with 0 after `--help`.
    """
    from .lightning_modules.common.redaction import secret_words

    words = argv = secret_words(sys.argv[1:] if argv is None else argv)
    if words and _names_a_script(words[0]):
        words.insert(0, "run")
    if words[:1] == ["run"]:
        return run(words[1:])
    parser = ArgumentParser(
        prog="lightrainer",
        description="The documented Trainer API over PyTorch Lightning.",
        epilog="What is no command is a script to run: lightrainer script.py. See `lightrainer run --help`.",
    )
    parser.add_argument("--version", action="version", version=f"lightrainer {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    # What follows the command is read by a parser of its own, which is only built for it.
    commands.add_parser("run", add_help=False, help="run a script with our Trainer; the word itself can be left out")
    commands.add_parser("launch", add_help=False, help="run a script in several processes, as `accelerate launch` does")
    commands.add_parser("sweep", add_help=False, help="run a script many times, to find its best arguments")
    commands.add_parser(
        "compare", add_help=False, help="run a script with transformers and with ours, show what differs"
    )
    commands.add_parser("plan", add_help=False, help="show what Lightning is given for some training arguments")
    commands.add_parser("estimate", add_help=False, help="show how much memory and traffic a training will need")
    commands.add_parser("convert", add_help=False, help="turn a checkpoint file of Lightning into a folder, or back")
    known, flags = parser.parse_known_args(words)
    return _COMMANDS[known.command](flags)


def _names_a_script(word: str) -> bool:
    """Whether a command line that begins so is one for Python: a file, an option of `run`, or one of Python's own."""
    if word.startswith("-"):
        from .interception.runner import is_option

        return word == "-" or word[:2] in ("-m", "-c") or (word not in ("-h", "--help") and is_option(word))
    if word in _COMMANDS:
        return False
    from .lightning_modules.common.suggestions import nearest

    return "." in word or nearest(word, _COMMANDS) is None or os.path.exists(word)


def run(words: Sequence[str]) -> int:
    """Run a script that uses the names of the reference, with ours in their place; see `interception.runner.run`."""
    from .interception.runner import run as start

    return start(words)


def convert(flags: Sequence[str]) -> int:
    """Turn a checkpoint around; see `conversion.convert`."""
    from .conversion import convert as turn

    return turn(flags)


def compare(flags: Sequence[str]) -> int:
    """Run a script with the reference and with ours, and compare; see `tools.compare.command.compare`."""
    from .tools.compare.command import compare as start

    return start(flags)


def launch(flags: Sequence[str]) -> int:
    """Start a script in several processes; see `tools.launch.launch`."""
    from .tools.launch import launch as start

    return start(flags)


def sweep(flags: Sequence[str]) -> int:
    """Run a script as a sweep; see `tools.sweep.command.sweep`."""
    from .tools.sweep.command import sweep as start

    return start(flags)


def estimate(flags: Sequence[str]) -> int:
    """Print the memory and the traffic of a training; see `estimate.estimate`."""
    from .estimate import estimate as work_out

    return work_out(flags)


def plan(flags: Sequence[str]) -> int:
    """Print what `translate` makes of training arguments, on any machine, and write nothing.

    Args:
        flags: The arguments as options, such as `--learning_rate 1e-4`.

    Returns:
        0, the exit status; what cannot be ends the program with 2.
    """
    from .facade import HfArgumentParser, TrainingArguments
    from .facade.arguments import problems
    from .facade.arguments.hardware import on_paper
    from .facade.strategies.plan import translate

    parser = HfArgumentParser(
        TrainingArguments,
        prog="lightrainer plan",
        description="Show what Lightning is given for these training arguments; nothing is written.",
        epilog="Example: lightrainer plan --bf16 --gradient_accumulation_steps 4 --lr_scheduler_type cosine",
    )
    try:
        with on_paper():
            (args,) = parser.parse_args_into_dataclasses(flags, look_for_args_file=False)
        print(translate(args))
        for problem in problems(args):
            print(f"It cannot run on this machine: {problem}", file=sys.stderr)
    except (ValueError, TypeError, NotImplementedError, OSError) as error:
        parser.error(str(error))
    return 0


_COMMANDS = {
    "run": run,
    "launch": launch,
    "sweep": sweep,
    "compare": compare,
    "plan": plan,
    "estimate": estimate,
    "convert": convert,
}


if __name__ == "__main__":
    sys.exit(main())
