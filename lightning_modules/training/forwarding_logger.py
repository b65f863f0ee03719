"""Lightning logger that forwards metrics to a listener."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..internals.lightning_import import Logger


class ForwardingLogger(Logger):
    """Forward metrics to a listener that already has trackers, so that callbacks that log find a logger.

    Args:
        listener: called with the metrics of each log; the step is the trainer's.
        save_dir: the folder of the logger; a `ModelCheckpoint` writes below it.
    """

    def __init__(self, listener: Callable[[dict[str, Any]], None], save_dir: str) -> None:
        super().__init__()
        self._listener = listener
        self._save_dir = save_dir

    @property
    def name(self) -> str:
        """Return an empty name, so that no subfolder is made."""
        return ""

    @property
    def version(self) -> str:
        """Return an empty version, likewise."""
        return ""

    @property
    def save_dir(self) -> str:
        """Return the folder."""
        return self._save_dir

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Forward the metrics in every process, since all keep a history; without Lightning's whole-number `epoch`."""
        found = {name: value for name, value in metrics.items() if name != "epoch"}
        if found:
            self._listener(found)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the trackers have the arguments."""
