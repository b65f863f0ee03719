"""Gradient synchronisation and position in the data loaders of a custom loop."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...lightning_modules.data.epoch_loader import EpochLoader


def _setting(name: str, default: object, doc: str) -> Any:
    """Return a property that reads and writes an item of `plugin_kwargs`."""

    def read(self: GradientState) -> object:
        return self.plugin_kwargs.get(name, default)

    def write(self: GradientState, value: object) -> None:
        self.plugin_kwargs[name] = value

    return property(read, write, doc=doc)


class GradientState:
    """Like `accelerate.state.GradientState`, but each accelerator has its own state.

    Args:
        settings: any of `num_steps`, `adjust_scheduler`, `sync_with_dataloader` and
            `sync_each_batch`.
    """

    initialized = True

    def __init__(self, settings: dict[str, object]) -> None:
        self.plugin_kwargs = settings
        self.sync_gradients = True
        self.active_loaders: list[weakref.ref[EpochLoader]] = []
        """The prepared loaders being read, the innermost last."""
        self.loader_end: tuple[bool, int] | None = None
        """`end_of_dataloader` and `remainder` as an evaluation, or a script, has set them.

        None to read them from the active loader.
        """

    num_steps: int = _setting("num_steps", 1, "The micro-batches in a window of `accumulate`.")
    adjust_scheduler: bool = _setting(
        "adjust_scheduler", False, "A prepared schedule counts the steps that it skips."
    )
    sync_with_dataloader: bool = _setting(
        "sync_with_dataloader", True, "The last batch of a loader ends a window."
    )
    sync_each_batch: bool = _setting(
        "sync_each_batch", False, "Gradients are synchronised after each micro-batch."
    )

    @property
    def dataloader_references(self) -> list[EpochLoader | None]:
        """Return None followed by the prepared loaders being read, the innermost last."""
        loaders: list[EpochLoader | None] = [None]
        for reference in self.active_loaders:
            loader = reference()
            if loader is not None:
                loaders.append(loader)
        return loaders

    @property
    def active_dataloader(self) -> EpochLoader | None:
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
        loader = self.active_dataloader
        return loader is not None and loader.end_of_loader

    @end_of_dataloader.setter
    def end_of_dataloader(self, is_last_batch: bool) -> None:
        self.loader_end = (is_last_batch, self.remainder)

    @property
    def remainder(self) -> int:
        """Return the samples in the last round of the loader: 0 if it is full, -1 if unknown."""
        if self.loader_end is not None:
            return self.loader_end[1]
        loader = self.active_dataloader
        if loader is None:
            return -1
        return loader.remainder

    @remainder.setter
    def remainder(self, samples: int) -> None:
        self.loader_end = (self.end_of_dataloader, samples)

    def enter_loader(self, loader: EpochLoader) -> None:
        """Make a prepared loader, which yields a batch, the active one."""
        self.loader_end = None
        if not self.active_loaders or self.active_loaders[-1]() is not loader:
            # It may be an outer loader whose inner loop was left early.
            self.exit_loader(loader)
            self.active_loaders.append(weakref.ref(loader))

    def exit_loader(self, loader: EpochLoader) -> None:
        """Remove an exhausted loader from the active ones, and those that no longer exist."""
        self.loader_end = None
        still_active: list[weakref.ref[EpochLoader]] = []
        for reference in self.active_loaders:
            if reference() not in (None, loader):
                still_active.append(reference)
        self.active_loaders = still_active

    def _set_sync_gradients(self, sync_gradients: bool) -> None:
        """Set `sync_gradients`; subclasses of the Trainer call this private name."""
        self.sync_gradients = sync_gradients

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return (
            f"GradientState(sync_gradients={self.sync_gradients}, "
            f"end_of_dataloader={self.end_of_dataloader}, remainder={self.remainder}, "
            f"{self.plugin_kwargs})"
        )
