"""Read micro-batches a whole accumulation window at a time, so that one Lightning batch is one optimizer step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from ..common.seeding import capture_host_rng, restore_host_rng
from ..data.loader_state import EpochStart, begin_after, begin_again, skip_items
from ..data.rng_discovery import drawing_parts, restore_own

Reader = Callable[[Iterator[Any], int], tuple[list[Any], Any]]


class Window(list[Any]):
    """The micro-batches of one optimizer step.

    Attributes:
        items: number of items (labels that count) in the whole window, over all processes; None if not counted.
        steps: whether an optimizer step follows. A stream that ends in mid-window leaves its gradients to the next
            epoch, as in the reference.
    """

    __slots__ = ("items", "steps")

    def __init__(self, batches: list[Any], items: Any, *, steps: bool) -> None:
        super().__init__(batches)
        self.items = items
        self.steps = steps


class WindowLoader:
    """Reads a loader in windows of `accumulation` micro-batches, from any position of an epoch on.

    Nothing is read, and no random number drawn, before the first `next()` of an epoch: Lightning makes iterators
    earlier than the reference does.

    Args:
        loader: gives micro-batches; any iterable.
        accumulation: micro-batches per optimizer step.
        batches: micro-batches in an epoch, None if unknown.
        windows: windows in an epoch, an upper bound if `batches` is None.
        read: `(iterator, n)` -> (up to n micro-batches, number of items in them).

    Attributes:
        exhausted: the loader has given less than was asked for, so the epoch is over.
        together: makes of the micro-batches those that go along with the ones of other processes.
    """

    def __init__(self, loader: Any, *, accumulation: int, batches: int | None, windows: int, read: Reader) -> None:
        self.loader = loader
        self.accumulation = accumulation
        self.batches = batches
        self.windows = windows
        self.read = read
        self.epoch = 0
        self.done = 0
        self.on_positioned: Callable[[], None] | None = None
        self.together: Callable[[Iterator[Any]], Iterator[Any]] | None = None
        self.exhausted = False
        self._stopped = False
        self._loader_state: dict[str, Any] | None = None
        self._beginning: EpochStart | None = None
        if hasattr(loader, "track"):
            loader.track()

    def __len__(self) -> int:
        return self.windows

    def start_at(
        self,
        epoch: int,
        window: int,
        on_positioned: Callable[[], None] | None = None,
        loader_state: dict[str, Any] | None = None,
    ) -> None:
        """Begin the next iteration at this window of this epoch.

        Args:
            epoch: epoch, from 0.
            window: windows of it that are done.
            on_positioned: called once the position is reached: before anything is read at the start of an epoch. In
                the middle of one, where the loader's state is known, when nothing has to be read any more to get
                there; otherwise after the first window is read, where the reference restores its generators.
            loader_state: what the loader's `state_dict` was there; without it the loader passes over what was read.
        """
        self.epoch, self.done, self.on_positioned = epoch, window, on_positioned
        self._loader_state = loader_state

    @property
    def is_at_end(self) -> bool:
        """Return whether all windows of the epoch are done, so that the next iteration is empty."""
        return self.done >= self.windows

    @property
    def is_cut_short(self) -> bool:
        """Return whether the epoch was stopped before its end."""
        read = self.is_at_end or self.exhausted or getattr(self.loader, "end_of_loader", False)
        return self._stopped and not read

    def epochs_done(self, steps_in_epoch: float) -> float:
        """Return the epochs read so far, with the part of the current one.

        Args:
            steps_in_epoch: micro-batches of an epoch.
        """
        micro_batches = self.done * self.accumulation
        if self.batches is not None:
            micro_batches = min(micro_batches, self.batches)
        return self.epoch + micro_batches / steps_in_epoch

    def stop(self) -> None:
        """End the epoch after the current window."""
        self._stopped = True

    def end_epoch(self) -> None:
        """Advance to the next epoch; called by the consumer, which may leave an iterator unfinished."""
        self.epoch, self.done = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next window, and of the loader if it has one, as Lightning's protocol asks."""
        known = self.loader if _is_resumable(self.loader) else self._beginning
        return {"epoch": self.epoch, "done": self.done, "loader": None if known is None else known.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the position of a `state_dict`."""
        self.start_at(state["epoch"], state["done"], loader_state=state.get("loader"))

    def __iter__(self) -> Iterator[Window]:
        self._stopped = self.exhausted = False
        if self.done == 0 or self.is_at_end:
            self._restore_own_generators()
            self._positioned()
        if self.is_at_end:
            return
        batches = self._micro_batches()
        batches = batches if self.together is None else self.together(batches)
        while self.done < self.windows and not self._stopped:
            size = self.accumulation
            if self.batches is not None and self.done == self.windows - 1:
                size = self.batches % size or size
            micro_batches, items = self.read(batches, size)
            window = Window(micro_batches, items, steps=len(micro_batches) == size)
            self.exhausted = len(window) < self.accumulation
            if not window:
                break
            if self.on_positioned is not None:
                self._positioned()
            self.done += 1
            yield window

    def _positioned(self) -> None:
        callback, self.on_positioned = self.on_positioned, None
        if callback is not None:
            callback()

    def _restore_own_generators(self) -> None:
        """Restore the generators of collator and dataset, once, since an evaluation may follow the end of an epoch."""
        state = self._loader_state
        if state is not None and _kind_of(state) == _kind(self.loader) != "own":
            restore_own(state.get("own_now"), *drawing_parts(self.loader))
            self._loader_state = {**state, "own_now": None}

    def _micro_batches(self) -> Iterator[Any]:
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(self.epoch)
        state, self._loader_state = self._loader_state, None
        if state is not None and _kind_of(state) != _kind(self.loader):
            state = None
        if not _is_resumable(self.loader):
            return self._gone_through(state)
        if state is not None and self.done > 0:
            return self._resumed(state)
        if state is not None and not hasattr(self.loader, "track"):
            return self._epoch_after(state)
        if state is not None:
            self.loader.begin_epoch_after(state)
        skipped = self.done * self.accumulation
        if skipped and hasattr(self.loader, "skip"):
            self.loader.skip(skipped)
            return iter(self.loader)
        return skip_items(iter(self.loader), skipped)

    def _gone_through(self, state: dict[str, Any] | None) -> Iterator[Any]:
        """Iterate over a loader without state; the batches done are read again and skipped."""
        if state is not None and self.done > 0:
            begin_again(self.loader, state)
        elif state is not None:
            begin_after(self.loader, state)
        self._beginning = EpochStart(self.loader)
        skipped = self.done * self.accumulation
        if skipped and hasattr(self.loader, "skip"):
            self.loader.skip(skipped)
            return iter(self.loader)
        batches = skip_items(iter(self.loader), skipped)
        if state is not None:
            self._positioned()
        return batches

    def _epoch_after(self, state: dict[str, Any]) -> Iterator[Any]:
        """Start the epoch after one that ended in this state of a foreign loader, which may not know that it ended."""
        rng = capture_host_rng()
        self.loader.load_state_dict(state)
        batches = iter(self.loader)
        for first in batches:
            return itertools.chain([first], batches)
        restore_host_rng(rng)
        return iter(self.loader)

    def _resumed(self, state: dict[str, Any]) -> Iterator[Any]:
        if not hasattr(self.loader, "track"):  # a foreign loader, such as torchdata's
            self.loader.load_state_dict(state)
            batches = iter(self.loader)
            self._positioned()
            return batches
        on_ready, self.on_positioned = self.on_positioned, None
        if not self.loader.load_state_dict(state, on_ready):
            self.on_positioned = on_ready
        return iter(self.loader)


def _is_resumable(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def _kind(loader: Any) -> str:
    """Return the kind of a loader's state: `Reading`, its own, or `EpochStart`."""
    if not _is_resumable(loader):
        return "beginning"
    return "reading" if hasattr(loader, "track") else "own"


def _kind_of(state: dict[str, Any]) -> str:
    if "began" in state:
        return "beginning"
    return "reading" if "handed_out" in state else "own"
