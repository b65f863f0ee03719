"""A Lightning logger that has no place of its own: what is logged goes to a listener."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..internals.lightning_import import Logger


class ForwardingLogger(Logger):
    """As Lightning's loggers, for those who have trackers already: callbacks that log find a logger in the trainer.

    Args:
        listener: called with the metrics of each log; the step is the trainer's.
        save_dir: what callbacks take for the folder of the logger; a `ModelCheckpoint` writes below it.
    """

    def __init__(self, listener: Callable[[dict[str, Any]], None], save_dir: str) -> None:
        super().__init__()
        self._listener = listener
        self._save_dir = save_dir

    @property
    def name(self) -> str:
        """Nothing, so that no subfolder is named after it."""
        return ""

    @property
    def version(self) -> str:
        """Nothing, likewise."""
        return ""

    @property
    def save_dir(self) -> str:
        """The folder."""
        return self._save_dir

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Pass them on, in every process, as all keep a history; Lightning's `epoch` counts only whole ones."""
        found = {name: value for name, value in metrics.items() if name != "epoch"}
        if found:
            self._listener(found)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing: the trackers have the arguments."""
