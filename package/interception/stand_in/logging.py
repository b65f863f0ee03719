"""Stand-in for `transformers.utils.logging`: the loggers below `transformers`, and their levels.

Messages of lightrainer come through these loggers; see `interception.switch`.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from logging import CRITICAL, DEBUG, ERROR, INFO, WARNING
from typing import Any

log_levels = {
    "detail": DEBUG,
    "debug": DEBUG,
    "info": INFO,
    "warning": WARNING,
    "error": ERROR,
    "critical": CRITICAL,
}
"""As `transformers.utils.logging.log_levels`: the words for `TRANSFORMERS_VERBOSITY`, with their
levels.
"""

_LIBRARY = "transformers"
_default_handler: logging.Handler | None = None


class _ToStandardError(logging.StreamHandler):
    """Writes to what `sys.stderr` is at the time."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr


def configure() -> None:
    """Give the library's logger its handler and the level that the environment asks for; done
    once.
    """
    global _default_handler
    if _default_handler is not None:
        return
    _default_handler = _ToStandardError()
    word = os.environ.get("TRANSFORMERS_VERBOSITY", "")
    if word and word not in log_levels:
        logging.getLogger().warning(
            f"TRANSFORMERS_VERBOSITY={word} is not known and not used. Choose from: "
            f"{', '.join(log_levels)}."
        )
    if word == "detail":
        _default_handler.setFormatter(_format("pathname"))
    logger = logging.getLogger(_LIBRARY)
    logger.addHandler(_default_handler)
    logger.setLevel(log_levels.get(word, WARNING))
    logger.propagate = os.environ.get("CI", "").upper() in {"1", "ON", "YES", "TRUE"}
    for method in (warning_once, info_once):
        setattr(logging.Logger, method.__name__, method)


def _format(place: str) -> logging.Formatter:
    return logging.Formatter(f"[%(levelname)s|%({place})s:%(lineno)s] %(asctime)s >> %(message)s")


def _library() -> logging.Logger:
    configure()
    return logging.getLogger(_LIBRARY)


def _handler() -> logging.Handler:
    configure()
    assert _default_handler is not None
    return _default_handler


def get_log_levels_dict() -> dict[str, int]:
    """As `transformers.utils.logging.get_log_levels_dict`."""
    return log_levels


def get_logger(name: str | None = None) -> logging.Logger:
    """As `transformers.utils.logging.get_logger`: a logger, by default that of the library."""
    library = _library()
    return library if name is None else logging.getLogger(name)


def get_verbosity() -> int:
    """As `transformers.utils.logging.get_verbosity`: the level of the library's logger."""
    return _library().getEffectiveLevel()


def set_verbosity(verbosity: int) -> None:
    """As `transformers.utils.logging.set_verbosity`."""
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
    """As `transformers.utils.logging.enable_default_handler`: messages go to stderr."""
    _library().addHandler(_handler())


def disable_default_handler() -> None:
    """As `transformers.utils.logging.disable_default_handler`."""
    _library().removeHandler(_handler())


def add_handler(handler: logging.Handler) -> None:
    """As `transformers.utils.logging.add_handler`."""
    _library().addHandler(handler)


def remove_handler(handler: logging.Handler) -> None:
    """As `transformers.utils.logging.remove_handler`, but it removes a handler that is there."""
    _library().removeHandler(handler)


def enable_propagation() -> None:
    """As `transformers.utils.logging.enable_propagation`: the root logger's handlers get the
    messages too.
    """
    _library().propagate = True


def disable_propagation() -> None:
    """As `transformers.utils.logging.disable_propagation`."""
    _library().propagate = False


def enable_explicit_format() -> None:
    """As `transformers.utils.logging.enable_explicit_format`: level, place and time before each
    message.
    """
    for handler in _library().handlers:
        handler.setFormatter(_format("filename"))


def reset_format() -> None:
    """As `transformers.utils.logging.reset_format`."""
    for handler in _library().handlers:
        handler.setFormatter(None)


def captureWarnings(capture: bool) -> None:  # noqa: N802 - the documented name
    """As `transformers.utils.logging.captureWarnings`: warnings become messages of the logger
    `py.warnings`.
    """
    logger = get_logger("py.warnings")
    if not logger.handlers:
        logger.addHandler(_handler())
    logger.setLevel(_library().level)
    logging.captureWarnings(capture)


@functools.lru_cache(None)
def warning_once(self: logging.Logger, *args: Any, **kwargs: Any) -> None:
    """As `transformers.utils.logging.warning_once`, which every logger has as a method."""
    self.warning(*args, **kwargs)


@functools.lru_cache(None)
def info_once(self: logging.Logger, *args: Any, **kwargs: Any) -> None:
    """As `transformers.utils.logging.info_once`, which every logger has as a method."""
    self.info(*args, **kwargs)


def is_progress_bar_enabled() -> bool:
    """As `transformers.utils.logging.is_progress_bar_enabled`."""
    return _bars


_bars = os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS", "").upper() not in {
    "1",
    "ON",
    "YES",
    "TRUE",
}


def enable_progress_bar() -> None:
    """As `transformers.utils.logging.enable_progress_bar`: those made by `tqdm` of this module,
    and of the Hub.
    """
    _set_bars(True)


def disable_progress_bar() -> None:
    """As `transformers.utils.logging.disable_progress_bar`."""
    _set_bars(False)


def _set_bars(on: bool) -> None:
    global _bars
    _bars = on
    hub = sys.modules.get("huggingface_hub.utils")
    if hub is not None:
        (hub.enable_progress_bars if on else hub.disable_progress_bars)()


def tqdm(*args: Any, **kwargs: Any) -> Any:
    """As `transformers.utils.logging.tqdm`: a bar of tqdm, one that shows nothing after
    `disable_progress_bar`.
    """
    from tqdm import auto

    return auto.tqdm(*args, **({} if _bars else {"disable": True}) | kwargs)
