"""Stand-in for `transformers.utils.logging`: the `transformers` loggers and their levels.

lightrainer forwards its messages to these loggers; see `interception.switch`.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from logging import CRITICAL, DEBUG, ERROR, INFO, WARNING
from typing import Any, TextIO

log_levels = {
    "detail": DEBUG,
    "debug": DEBUG,
    "info": INFO,
    "warning": WARNING,
    "error": ERROR,
    "critical": CRITICAL,
}
"""The levels of `logging` by the values of `TRANSFORMERS_VERBOSITY`."""

_LIBRARY = "transformers"
_TRUE_WORDS = {"1", "ON", "YES", "TRUE"}
_default_handler: logging.Handler | None = None


class _StderrHandler(logging.StreamHandler):
    """Writes to the current `sys.stderr`, which programs may replace."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr


def configure() -> None:
    """Set up the library's logger according to the environment; idempotent."""
    global _default_handler
    if _default_handler is not None:
        return
    _default_handler = _StderrHandler()

    verbosity = os.environ.get("TRANSFORMERS_VERBOSITY", "")
    if verbosity and verbosity not in log_levels:
        logging.getLogger().warning(
            f"TRANSFORMERS_VERBOSITY={verbosity} is not known; ignoring it. Choose from: "
            f"{', '.join(log_levels)}."
        )
    logger = logging.getLogger(_LIBRARY)
    logger.addHandler(_default_handler)
    logger.setLevel(log_levels.get(verbosity, WARNING))
    # In CI the messages also go to the root logger, so that tests can capture them.
    logger.propagate = os.environ.get("CI", "").upper() in _TRUE_WORDS
    logging.Logger.warning_once = warning_once  # type: ignore[attr-defined] - as in the library


def _library() -> logging.Logger:
    """Return the library's logger, and configure it first if needed."""
    configure()
    return logging.getLogger(_LIBRARY)


def _handler() -> logging.Handler:
    """Return the handler that writes to stderr."""
    configure()
    assert _default_handler is not None
    return _default_handler


def get_logger(name: str | None = None) -> logging.Logger:
    """Return a logger.

    Args:
        name: its name; by default that of the library.
    """
    library_logger = _library()
    if name is None:
        return library_logger
    return logging.getLogger(name)


def get_verbosity() -> int:
    """Return the level of the library's logger, as a number of `logging`."""
    return _library().getEffectiveLevel()


def set_verbosity(verbosity: int) -> None:
    """Set the level of the library's logger.

    Args:
        verbosity: a level of `logging`, such as `logging.INFO`.
    """
    _library().setLevel(verbosity)


def _setter(level: int) -> Callable[[], None]:
    """Return a function without parameters that sets the given level."""

    def set_level() -> None:
        set_verbosity(level)

    set_level.__doc__ = (
        f"Set the level {level}, as the function of this name in `transformers.utils.logging`."
    )
    return set_level


set_verbosity_debug = _setter(DEBUG)
set_verbosity_info = _setter(INFO)
set_verbosity_warning = _setter(WARNING)
set_verbosity_error = _setter(ERROR)


def enable_default_handler() -> None:
    """Write messages of the library to stderr."""
    _library().addHandler(_handler())


def disable_default_handler() -> None:
    """Stop writing messages of the library to stderr."""
    _library().removeHandler(_handler())


def enable_propagation() -> None:
    """Also pass messages of the library to the root logger."""
    _library().propagate = True


def disable_propagation() -> None:
    """Stop passing messages of the library to the root logger."""
    _library().propagate = False


def enable_progress_bar() -> None:
    """Show the progress bars of downloads."""
    from huggingface_hub.utils import enable_progress_bars

    enable_progress_bars()


def disable_progress_bar() -> None:
    """Hide the progress bars of downloads."""
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()


def enable_explicit_format() -> None:
    """Write level, file and time before each message."""
    formatter = logging.Formatter(
        "[%(levelname)s|%(filename)s:%(lineno)s] %(asctime)s >> %(message)s"
    )
    for handler in _library().handlers:
        handler.setFormatter(formatter)


@functools.lru_cache(None)
def warning_once(self: logging.Logger, *args: Any, **kwargs: Any) -> None:
    """Log a warning, unless the same one was logged before.

    `configure` adds this as a method to all loggers.

    Args:
        self: the logger.
        args: as for `logging.Logger.warning`.
        kwargs: as for `logging.Logger.warning`.
    """
    self.warning(*args, **kwargs)
