"""One Lightning batch is one optimizer step: micro-batches are read a whole window at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

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
        self._stopped = False
        self._loader_state: dict[str, Any] | None = None
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

    def stop(self) -> None:
        """End the epoch after the current window."""
        self._stopped = True

    def end_epoch(self) -> None:
        """Go on with the next epoch; who consumes this loader says so, as an iterator may be left unfinished."""
        self.epoch, self.done = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Position of the next window, and of the loader if it has one: Lightning's resumable-loader protocol."""
        loader = self.loader.state_dict() if _is_resumable(self.loader) else None
        return {"epoch": self.epoch, "done": self.done, "loader": loader}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the position of `state_dict`."""
        self.start_at(state["epoch"], state["done"], loader_state=state.get("loader"))

    def __iter__(self) -> Iterator[Window]:
        self._stopped = False
        if self.done == 0 or self.done >= self.windows:
            self._positioned()
        if self.done >= self.windows:
            return
        batches = self._micro_batches()
        while self.done < self.windows and not self._stopped:
            window = self._next_window(batches)
            if not window:
                break
            self._positioned()
            self.done += 1
            yield window

    def _positioned(self) -> None:
        callback, self.on_positioned = self.on_positioned, None
        if callback is not None:
            callback()

    def _micro_batches(self) -> Iterator[Any]:
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(self.epoch)
        state, self._loader_state = self._loader_state, None
        if state is not None and self.done > 0 and _is_resumable(self.loader):
            return self._resumed(state)
        if state is not None and hasattr(self.loader, "begin_epoch_after"):
            self.loader.begin_epoch_after(state)
        skipped = self.done * self.accumulation
        if skipped and hasattr(self.loader, "skip"):
            self.loader.skip(skipped)
            return iter(self.loader)
        batches = iter(self.loader)
        for _ in range(skipped):
            next(batches, None)
        return batches

    def _resumed(self, state: dict[str, Any]) -> Iterator[Any]:
        if not hasattr(self.loader, "track"):  # somebody else's, such as torchdata's
            self.loader.load_state_dict(state)
            batches = iter(self.loader)
            self._positioned()
            return batches
        on_ready, self.on_positioned = self.on_positioned, None
        if not self.loader.load_state_dict(state, on_ready):
            self.on_positioned = on_ready
        return iter(self.loader)

    def _next_window(self, batches: Iterator[Any]) -> Window:
        size = self.accumulation
        last = self.batches is not None and self.done == self.windows - 1
        if last and self.batches % self.accumulation:  # type: ignore[operator]  # `last` says it is not None
            size = self.batches % self.accumulation  # type: ignore[operator]
        micro_batches, items = self.read(batches, size)
        return Window(micro_batches, items, steps=len(micro_batches) == size)


def _is_resumable(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
