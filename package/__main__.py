"""The command line: `plan` shows what Lightning is given for training arguments, `convert` turns checkpoints around."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from . import __version__
from .conversion import convert


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; there is none in the reference.

    Args:
        argv: The words after the program's name; by default those this program was started with.

    Returns:
        0, the exit status.

    Raises:
        SystemExit: With status 2 and the reason on stderr where something cannot be; with 0 after `--help`.
    """
    parser = ArgumentParser(prog="lightrainer", description="The documented Trainer API over PyTorch Lightning.")
    parser.add_argument("--version", action="version", version=f"lightrainer {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    # What follows the command is read by a parser of its own, which is only built for it.
    commands.add_parser("plan", add_help=False, help="show what Lightning is given for some training arguments")
    commands.add_parser("convert", add_help=False, help="turn a checkpoint file of Lightning into a folder, or back")
    known, flags = parser.parse_known_args(argv)
    return {"plan": plan, "convert": convert}[known.command](flags)


def plan(flags: Sequence[str]) -> int:
    """Print what `translate` makes of training arguments, and write nothing.

    Args:
        flags: The arguments as options, such as `--learning_rate 1e-4`.

    Returns:
        0, the exit status; what cannot be ends the program with 2.
    """
    from .facade import HfArgumentParser, TrainingArguments
    from .facade.plan import translate

    parser = HfArgumentParser(
        TrainingArguments,
        prog="lightrainer plan",
        description="Show what Lightning is given for these training arguments; nothing is written.",
        epilog="Example: lightrainer plan --use_cpu --bf16 --gradient_accumulation_steps 4 --lr_scheduler_type cosine",
    )
    try:
        (args,) = parser.parse_args_into_dataclasses(flags, look_for_args_file=False)
        print(translate(args))
    except (ValueError, TypeError, NotImplementedError, OSError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
