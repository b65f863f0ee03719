"""How much this package says, as `log_level` and `log_level_replica` ask for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .arguments import TrainingArguments

_ROOT = __name__.partition(".")[0]


def set_verbosity(args: TrainingArguments) -> None:
    """As the reference sets its verbosity when a Trainer is made; `passive` leaves everything to the script.

    Where the script has set up no logging at all, messages go to the standard error stream: who asks for `info` means
    to see it.
    """
    wanted = args.log_level if args.should_log else args.log_level_replica
    if wanted == "passive":
        return
    logger = logging.getLogger(_ROOT)
    logger.setLevel(args.get_process_log_level())
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
