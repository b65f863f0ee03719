"""The command `profile`: run a script until some of its steps are profiled."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import os
import sys
from argparse import REMAINDER
from collections.abc import Sequence

from .changed_run import note_options_of_script
from .command_line import CommandParser, whole


def profile(words: Sequence[str]) -> int:
    """Run a script under the runner, with a `ProfilerCallback` that ends each training after the
    profiled steps.

    Args:
        words: options, the script, and its arguments.

    Returns:
        The exit status of a wrong command line; otherwise the process becomes the script's.
    """
    from ..callbacks.reporting import PROFILE
    from ..interception.environment import switch_on
    from ..interception.runner import become

    parser = CommandParser(
        "profile",
        "Run a script for some steps, and show where their time goes: a table, advice, and in the "
        "output folder of the training profile/profile.txt and profile/trace.json, for "
        "https://ui.perfetto.dev.",
        "Example: lightrainer profile train.py --learning_rate 1e-4",
        "lightrainer profile [--wait N] [--warmup N] [--active N] SCRIPT [ARGUMENTS]",
    )
    parser.add_argument(
        "--wait", type=whole(0), default=5, help="steps before the profiler starts (5)"
    )
    parser.add_argument(
        "--warmup",
        type=whole(1),
        default=2,
        help="steps that it runs for without counting them (2)",
    )
    parser.add_argument("--active", type=whole(1), default=10, help="steps that count (10)")
    parser.add_argument("script", metavar="SCRIPT", help="the script, a Python file")
    parser.add_argument("words", metavar="ARGUMENTS", nargs=REMAINDER, help="those of the script")
    given = parser.parse_args(words)
    note_options_of_script("profile", given)
    os.environ[PROFILE] = f"{given.wait},{given.warmup},{given.active}"
    switch_on(os.environ)
    return become([sys.executable, given.script, *given.words])
