"""Gradient synchronisation and position in the data loaders of a custom loop."""

from __future__ import annotations

import weakref
from typing import Any


def _setting(name: str, default: Any, doc: str) -> Any:
    """Return a property that is an item of `plugin_kwargs`."""

    def write(self: GradientState, value: Any) -> None:
        self.plugin_kwargs[name] = value

    return property(lambda self: self.plugin_kwargs.get(name, default), write, doc=doc)


class GradientState:
    """As `accelerate.state.GradientState`, but one object per accelerator instead of shared state.

    Args:
        settings: any of `num_steps`, `adjust_scheduler`, `sync_with_dataloader` and
            `sync_each_batch`.
    """

    initialized = True

    def __init__(self, settings: dict[str, Any]) -> None:
        self.plugin_kwargs = settings
        self.sync_gradients = True
        self._loaders: list[weakref.ref[Any]] = []
        self.loader_end: tuple[bool, int] | None = None
        """`end_of_dataloader` and `remainder` as set by an evaluation; None to read them from
        the active loader.
        """

    num_steps: int = _setting("num_steps", 1, "The micro-batches in a window of `accumulate`.")
    adjust_scheduler: bool = _setting(
        "adjust_scheduler", False, "A prepared schedule counts the steps that it skips."
    )
    sync_with_dataloader: bool = _setting(
        "sync_with_dataloader", True, "The last batch of a loader ends a window."
    )
    sync_each_batch: bool = _setting(
        "sync_each_batch", False, "Gradients are synchronised in each micro-batch."
    )

    @property
    def dataloader_references(self) -> list[Any]:
        """Return None followed by the prepared loaders being read, the innermost last."""
        return [
            None,
            *(loader for reference in self._loaders if (loader := reference()) is not None),
        ]

    @property
    def active_dataloader(self) -> Any:
        """Return the innermost prepared loader being read, or None."""
        return self.dataloader_references[-1]

    @property
    def in_dataloader(self) -> bool:
        """Return whether a prepared loader is being read."""
        return self.active_dataloader is not None

    @property
    def end_of_dataloader(self) -> bool:
        """Return whether the current batch is the last one of its loader."""
        if self.loader_end is not None:
            return self.loader_end[0]
        return self.in_dataloader and self.active_dataloader.end_of_loader

    @end_of_dataloader.setter
    def end_of_dataloader(self, ends: bool) -> None:
        self.loader_end = ends, self.remainder

    @property
    def remainder(self) -> int:
        """Return the samples in the last round of the loader if that is not full; 0 if it is, -1
        if unknown.
        """
        if self.loader_end is not None:
            return self.loader_end[1]
        return self.active_dataloader.remainder if self.in_dataloader else -1

    @remainder.setter
    def remainder(self, samples: int) -> None:
        self.loader_end = self.end_of_dataloader, samples

    def enter_loader(self, loader: Any) -> None:
        """Make a prepared loader that yields a batch the active one."""
        self.loader_end = None
        if self.active_dataloader is not loader:
            self.exit_loader(loader)
            self._loaders.append(weakref.ref(loader))

    def exit_loader(self, loader: Any) -> None:
        """Remove an exhausted loader from the active ones."""
        self.loader_end = None
        self._loaders = [one for one in self._loaders if one() not in (None, loader)]

    def _set_sync_gradients(self, sync_gradients: bool) -> None:
        """Set `sync_gradients` by the reference's private name, which Trainer subclasses call."""
        self.sync_gradients = sync_gradients

    def __repr__(self) -> str:
        """Return a one-line summary."""
        loader = f"end_of_dataloader={self.end_of_dataloader}, remainder={self.remainder}"
        return (
            f"GradientState(sync_gradients={self.sync_gradients}, {loader}, {self.plugin_kwargs})"
        )
