"""From the names in `report_to` to callbacks."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec

from .base import TrainerCallback
from .tensorboard import TensorBoardCallback

_CALLBACKS: dict[str, type[TrainerCallback]] = {"tensorboard": TensorBoardCallback}
_PACKAGES = {"tensorboard": "tensorboard"}


def available_reporting_integrations() -> list[str]:
    """As `transformers.integrations.get_available_reporting_integrations`: the names whose package is installed."""
    return [name for name in _CALLBACKS if find_spec(_PACKAGES[name]) is not None]


def reporting_callbacks(report_to: str | Iterable[str] | None) -> list[type[TrainerCallback]]:
    """As `transformers.integrations.get_reporting_integration_callbacks`, but "none" and "all" may be in a list.

    Args:
        report_to: a name or several; `None` and "none" stand for no callback, "all" for everything that is installed.

    Raises:
        ValueError: there is no callback of such a name.
    """
    names = [report_to] if isinstance(report_to, str) else list(report_to or [])
    names = available_reporting_integrations() if "all" in names else [name for name in names if name != "none"]
    return [_callback_class(name) for name in dict.fromkeys(names)]


def _callback_class(name: str) -> type[TrainerCallback]:
    if name not in _CALLBACKS:
        known = [*_CALLBACKS, "all", "none"]
        close = get_close_matches(str(name), known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"report_to has {name!r}, for which there is no callback.{hint} There are: {', '.join(known)}. For "
            "another service pass a TrainerCallback of your own in `callbacks`."
        )
    return _CALLBACKS[name]
