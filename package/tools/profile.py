"""The command `profile`: run a script until some of its steps have been profiled."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from .changed_run import warn_of_ambiguous_options
from .command_line import CommandParser, integer


def profile(words: Sequence[str]) -> int:
    """Run a script with a `ProfilerCallback`, which ends each training after the profiled steps.

    Args:
        words: options, the script, and arguments for it.

    Returns:
        The exit status if the script cannot be started; otherwise the script replaces this process.
    """
    from ..callbacks.reporting import PROFILE
    from ..interception.environment import switch_on
    from ..interception.runner import become

    parser = CommandParser(
        "profile",
        "Run a script for some steps, and show where the time is spent. The "
        "output folder of the training gets profile/profile.txt and profile/trace.json, for "
        "https://ui.perfetto.dev.",
        "Example: lightrainer profile train.py --learning_rate 1e-4",
        "lightrainer profile [--wait N] [--warmup N] [--active N] SCRIPT [ARGUMENTS]",
    )
    parser.add_argument(
        "--wait", type=integer(0), default=5, help="steps before the profiler starts (5)"
    )
    parser.add_argument(
        "--warmup",
        type=integer(1),
        default=2,
        help="steps with the profiler that are not recorded (2)",
    )
    parser.add_argument(
        "--active", type=integer(1), default=10, help="steps that are recorded (10)"
    )
    parser.add_script()
    options = parser.parse_args(words)
    warn_of_ambiguous_options("profile", options)

    # The Trainer of the script reads the numbers of steps from the environment.
    os.environ[PROFILE] = f"{options.wait},{options.warmup},{options.active}"
    switch_on(os.environ)
    return become([sys.executable, options.script, *options.words])
