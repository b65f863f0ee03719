"""Set up the process in which a Trainer is constructed: imports, seed, log level, output folder."""

from __future__ import annotations

import logging
import os
from functools import cache
from importlib import import_module

from ...lightning_modules.common.seeding import (
    enable_full_determinism,
    preserved_host_rng,
    set_seed,
)
from ..arguments import TrainingArguments

_ROOT = __name__.partition(".")[0]


@cache
def preload_lightning() -> None:
    """Import Lightning before anything is timed, because the import takes about a second.

    The import draws from Python's random generator, so its state is restored afterwards.
    """
    with preserved_host_rng():
        import_module(".lightning_trainer", __package__)


def seed_everything(args: TrainingArguments) -> None:
    """Seed all generators; with `full_determinism`, also enable deterministic algorithms."""
    if args.full_determinism:
        enable_full_determinism(args.seed)
    else:
        set_seed(args.seed)


def set_verbosity(args: TrainingArguments) -> None:
    """Set the log level, as the reference does when a Trainer is created.

    The level `passive` leaves the current level unchanged. If the script has not configured
    logging, messages go to stderr.
    """
    log_level = args.log_level
    if not args.should_log:
        log_level = args.log_level_replica
    if log_level == "passive":
        return

    # When imports of transformers are intercepted, the parent logger of this package is
    # `transformers`, and scripts expect the level to be set there.
    package_logger = logging.getLogger(_ROOT)
    while package_logger.parent is not None and package_logger.parent is not logging.root:
        package_logger = package_logger.parent

    package_logger.setLevel(args.get_process_log_level())
    if not package_logger.hasHandlers():
        package_logger.addHandler(logging.StreamHandler())


def make_output_dir(output_dir: str) -> None:
    """Create the output folder and its parents, unless it exists.

    Raises:
        OSError: it cannot be created, for example a PermissionError.
    """
    try:
        os.makedirs(output_dir, exist_ok=True)
    except OSError as error:
        reason = f"output_dir cannot be created ({error.strerror}). Pass another one"
        raise type(error)(error.errno, reason, output_dir) from None
