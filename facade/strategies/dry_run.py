"""`python -m lightrainer --dry-run script.py`: the plan is printed in the place of the first run."""

from __future__ import annotations

import os
from typing import Any

VARIABLE = "LIGHTRAINER_DRY_RUN"
"""The environment variable that asks for it: 1 or anything else that is not 0."""


def stop_if_asked_to(trainer: Any) -> None:
    """Print the plan of a Trainer that is about to train, evaluate or predict, and end the process; else do nothing.

    Raises:
        SystemExit: With status 0, where the environment asks for a dry run; in several processes the first one prints.
    """
    if os.environ.get(VARIABLE, "0") in ("", "0"):
        return
    if trainer.is_world_process_zero():
        print(trainer.plan, flush=True)
    raise SystemExit(0)
