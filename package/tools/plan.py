"""The command `plan`: show the Lightning configuration for training arguments."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import sys
from collections.abc import Sequence


def plan(flags: Sequence[str]) -> int:
    """Print the Lightning configuration for training arguments, without writing anything.

    Args:
        flags: the arguments as options, such as `--learning_rate 1e-4`.

    Returns:
        the exit status 0; invalid arguments exit with status 2.
    """
    from ..facade import HfArgumentParser, TrainingArguments
    from ..facade.arguments import problems
    from ..facade.arguments.hardware import assume_all_formats
    from ..facade.strategies.plan import translate

    parser = HfArgumentParser(
        TrainingArguments,
        prog="lightrainer plan",
        description=(
            "Show the configuration of Lightning for these training arguments; nothing is written."
        ),
        epilog=(
            "Example: lightrainer plan --bf16 --gradient_accumulation_steps 4 --lr_scheduler_type "
            "cosine"
        ),
    )
    # Accept arguments for the devices of another machine. The problems that they have on this one
    # are printed after the plan.
    try:
        with assume_all_formats():
            (args,) = parser.parse_args_into_dataclasses(flags, look_for_args_file=False)
        table = str(translate(args))
        problems_here = problems(args)
    except (ValueError, TypeError, NotImplementedError, OSError) as error:
        parser.error(str(error))
    else:
        print(table)
        for problem in problems_here:
            print(f"It cannot run on this machine: {problem}", file=sys.stderr)
    return 0
