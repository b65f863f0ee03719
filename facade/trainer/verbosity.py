"""How much this package says, as `log_level` and `log_level_replica` ask for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..arguments import TrainingArguments

_ROOT = __name__.partition(".")[0]


def set_verbosity(args: TrainingArguments) -> None:
    """As the reference sets its verbosity when a Trainer is made; `passive` leaves everything to the script.

    Where the script has set up no logging at all, messages go to the standard error stream: who asks for `info` means
    to see it.
    """
    wanted = args.log_level if args.should_log else args.log_level_replica
    if wanted == "passive":
        return
    logger = top_logger()
    logger.setLevel(args.get_process_log_level())
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())


def top_logger() -> logging.Logger:
    """The logger that decides how much this package says: its own, or the one that its messages are handed on to.

    Where names of the reference are served, that is `transformers`, as scripts expect.
    """
    logger = logging.getLogger(_ROOT)
    while logger.parent is not None and logger.parent is not logging.root:
        logger = logger.parent
    return logger
