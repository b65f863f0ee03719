"""Where an own loop stands: in which loader, at its end or not, and whether gradients are exchanged now."""

from __future__ import annotations

import weakref
from typing import Any


class GradientState:
    """As `accelerate.state.GradientState`, but of one accelerator, not of all.

    Args:
        settings: `num_steps`, `adjust_scheduler`, `sync_with_dataloader` and `sync_each_batch`, where they are given.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.plugin_kwargs = settings
        self.sync_gradients = True
        self._loaders: list[weakref.ref[Any]] = []
        self.told: tuple[bool, int] | None = None
        """What an evaluation says of the end of its loader; None where the loader that is read says it."""

    @property
    def initialized(self) -> bool:
        """Always."""
        return True

    @property
    def num_steps(self) -> int:
        """Micro-batches in a window of `accumulate`."""
        return self.plugin_kwargs.get("num_steps", 1)

    @property
    def adjust_scheduler(self) -> bool:
        """Whether a prepared schedule counts the steps that it leaves out."""
        return self.plugin_kwargs.get("adjust_scheduler", False)

    @property
    def sync_with_dataloader(self) -> bool:
        """Whether the last batch of a prepared loader ends a window."""
        return self.plugin_kwargs.get("sync_with_dataloader", True)

    @property
    def sync_each_batch(self) -> bool:
        """Whether gradients are exchanged for each micro-batch."""
        return self.plugin_kwargs.get("sync_each_batch", False)

    @property
    def dataloader_references(self) -> list[Any]:
        """The prepared loaders that are being read, the innermost last; first a None."""
        return [None, *(loader for reference in self._loaders if (loader := reference()) is not None)]

    @property
    def active_dataloader(self) -> Any:
        """The prepared loader that is being read, the innermost one; None outside of them."""
        return self.dataloader_references[-1]

    @property
    def in_dataloader(self) -> bool:
        """Whether a prepared loader is being read."""
        return self.active_dataloader is not None

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the batch that was handed out last is the last one of its loader."""
        if self.told is not None:
            return self.told[0]
        return self.in_dataloader and self.active_dataloader.end_of_loader

    @end_of_dataloader.setter
    def end_of_dataloader(self, ends: bool) -> None:
        self.told = ends, self.remainder

    @property
    def remainder(self) -> int:
        """Samples in the last, shorter round of that loader; 0 if it is a full one, -1 if that is unknown."""
        if self.told is not None:
            return self.told[1]
        return self.active_dataloader.remainder if self.in_dataloader else -1

    @remainder.setter
    def remainder(self, samples: int) -> None:
        self.told = self.end_of_dataloader, samples

    def reads(self, loader: Any) -> None:
        """A prepared loader hands out a batch."""
        self.told = None
        if self.active_dataloader is not loader:
            self.leaves(loader)
            self._loaders.append(weakref.ref(loader))

    def leaves(self, loader: Any) -> None:
        """A prepared loader has ended."""
        self.told = None
        self._loaders = [one for one in self._loaders if one() not in (None, loader)]

    def _set_sync_gradients(self, sync_gradients: bool) -> None:
        """The reference's name of setting `sync_gradients`, which Trainers call."""
        self.sync_gradients = sync_gradients

    def __repr__(self) -> str:
        """What there is to know."""
        return (
            f"GradientState(sync_gradients={self.sync_gradients}, end_of_dataloader={self.end_of_dataloader}, "
            f"remainder={self.remainder}, {self.plugin_kwargs})"
        )
