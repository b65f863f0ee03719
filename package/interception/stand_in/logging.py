"""Stand-in for `transformers.utils.logging`: the loggers below `transformers`, and their levels.

Messages of lightrainer pass through these loggers; see `interception.switch`.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from logging import CRITICAL, DEBUG, ERROR, INFO, WARNING
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm as ProgressBar  # noqa: N812 - a class, in spite of its name

log_levels = {
    "detail": DEBUG,
    "debug": DEBUG,
    "info": INFO,
    "warning": WARNING,
    "error": ERROR,
    "critical": CRITICAL,
}
"""Levels of `logging` by the words for `TRANSFORMERS_VERBOSITY`."""

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
    """Set up the library's logger as the environment asks for; idempotent."""
    global _default_handler
    if _default_handler is not None:
        return
    _default_handler = _StderrHandler()

    # TRANSFORMERS_VERBOSITY sets the level, and with "detail" the format too.
    verbosity = os.environ.get("TRANSFORMERS_VERBOSITY", "")
    if verbosity and verbosity not in log_levels:
        logging.getLogger().warning(
            f"TRANSFORMERS_VERBOSITY={verbosity} is not known; ignoring it. Choose from: "
            f"{', '.join(log_levels)}."
        )
    if verbosity == "detail":
        _default_handler.setFormatter(_formatter("pathname"))

    logger = logging.getLogger(_LIBRARY)
    logger.addHandler(_default_handler)
    logger.setLevel(log_levels.get(verbosity, WARNING))
    # In CI the root logger gets the messages too, so that tests can capture them.
    logger.propagate = os.environ.get("CI", "").upper() in _TRUE_WORDS
    for method in (warning_once, info_once):
        setattr(logging.Logger, method.__name__, method)


def _formatter(file_attribute: str) -> logging.Formatter:
    """Return a formatter that writes level, file, line and time before the message.

    Args:
        file_attribute: the attribute of a record for the file, `filename` or `pathname`.
    """
    return logging.Formatter(
        f"[%(levelname)s|%({file_attribute})s:%(lineno)s] %(asctime)s >> %(message)s"
    )


def _library() -> logging.Logger:
    configure()
    return logging.getLogger(_LIBRARY)


def _handler() -> logging.Handler:
    configure()
    assert _default_handler is not None
    return _default_handler


def get_log_levels_dict() -> dict[str, int]:
    """Return the logging levels by the words for `TRANSFORMERS_VERBOSITY`."""
    return log_levels


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
    def set_level() -> None:
        set_verbosity(level)

    set_level.__doc__ = (
        f"As the function of this name in `transformers.utils.logging`: set the level {level}."
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
    """Write no messages of the library to stderr."""
    _library().removeHandler(_handler())


def add_handler(handler: logging.Handler) -> None:
    """Pass messages of the library to another handler, too.

    Args:
        handler: the handler.
    """
    _library().addHandler(handler)


def remove_handler(handler: logging.Handler) -> None:
    """Stop passing messages of the library to a handler.

    Works like `transformers.utils.logging.remove_handler`, but it really removes the handler.

    Args:
        handler: one that was added.
    """
    _library().removeHandler(handler)


def enable_propagation() -> None:
    """Pass messages of the library to the root logger, too."""
    _library().propagate = True


def disable_propagation() -> None:
    """Stop passing messages of the library to the root logger."""
    _library().propagate = False


def enable_explicit_format() -> None:
    """Write level, file and time before each message."""
    for handler in _library().handlers:
        handler.setFormatter(_formatter("filename"))


def reset_format() -> None:
    """Write messages without level, file and time."""
    for handler in _library().handlers:
        handler.setFormatter(None)


def captureWarnings(capture: bool) -> None:  # noqa: N802 - the documented name
    """Pass Python's warnings to the logger `py.warnings`, or stop doing so.

    Args:
        capture: whether to pass them.
    """
    logger = get_logger("py.warnings")
    if not logger.handlers:
        logger.addHandler(_handler())
    logger.setLevel(_library().level)
    logging.captureWarnings(capture)


@functools.lru_cache(None)
def warning_once(self: logging.Logger, *args: Any, **kwargs: Any) -> None:
    """Log a warning, unless the same one was logged before; a method of every logger.

    Args:
        self: the logger.
        args: those of `logging.Logger.warning`.
        kwargs: those of `logging.Logger.warning`.
    """
    self.warning(*args, **kwargs)


@functools.lru_cache(None)
def info_once(self: logging.Logger, *args: Any, **kwargs: Any) -> None:
    """Log a message at level INFO, unless it was logged before; a method of every logger.

    Args:
        self: the logger.
        args: those of `logging.Logger.info`.
        kwargs: those of `logging.Logger.info`.
    """
    self.info(*args, **kwargs)


def is_progress_bar_enabled() -> bool:
    """Return whether the bars of `tqdm` of this module are shown."""
    return _shows_progress_bars


_shows_progress_bars = os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS", "").upper() not in _TRUE_WORDS


def enable_progress_bar() -> None:
    """Show the bars of this module, and those of the Hub."""
    _set_progress_bars(True)


def disable_progress_bar() -> None:
    """Hide the bars of this module, and those of the Hub."""
    _set_progress_bars(False)


def _set_progress_bars(enabled: bool) -> None:
    global _shows_progress_bars
    _shows_progress_bars = enabled

    # The Hub reads its own switch; where it is not loaded, it reads the environment.
    hub = sys.modules.get("huggingface_hub.utils")
    if hub is None:
        return
    if enabled:
        hub.enable_progress_bars()
    else:
        hub.disable_progress_bars()


def tqdm(*args: Any, **kwargs: Any) -> ProgressBar:
    """Return a progress bar, hidden after `disable_progress_bar`.

    Args:
        args: those of `tqdm.auto.tqdm`.
        kwargs: those of `tqdm.auto.tqdm`.
    """
    from tqdm import auto

    if not _shows_progress_bars:
        kwargs.setdefault("disable", True)
    return auto.tqdm(*args, **kwargs)
