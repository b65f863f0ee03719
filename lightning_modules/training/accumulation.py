"""Read a loader in windows of micro-batches for gradient accumulation.

Each Lightning batch is one window, and therefore one optimizer step.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..common.stop_iteration import stop_iteration_error
from ..data.epoch_loader import EpochLoader
from ..data.loader_state import (
    ForeignLoader,
    ReplayLoader,
    before_epoch,
    has_ended,
    is_of_other_batches,
    skip_items,
)

_log = logging.getLogger(__name__)

ItemCount = torch.Tensor | int | None
"""Number of items (labels that are not ignored) in a window, over all processes; None if unknown.
"""

WindowReader = Callable[[Iterator[Any], int], tuple[list[Any], ItemCount]]
"""Takes `(batches, n)`, and returns up to n micro-batches and the number of their items."""


class Window(list[Any]):
    """The micro-batches of one optimizer step; the last window of an epoch may be shorter.

    Attributes:
        items: number of items (labels that are not ignored) in the window, over all processes; None
            if unknown.
        loader_end: whether the last micro-batch is the last one of the loader, and the `remainder`
            of the loader then, -1 if it is unknown.
    """

    items: ItemCount = None
    loader_end: tuple[bool, int] = (False, -1)


class WindowLoader:
    """Reads a loader in windows of `accumulation` micro-batches, from any position in an epoch.

    Nothing is read, and no random numbers are drawn, before the first `next()` of an epoch, because
    Lightning creates iterators earlier than the reference.

    Args:
        loader: yields micro-batches; any iterable.
        accumulation: micro-batches per optimizer step.
        batches_per_epoch: micro-batches per epoch; None if unknown.
        windows_per_epoch: windows per epoch; an upper bound if `batches_per_epoch` is None.
        read_window: reads the micro-batches of one window, and counts their items.

    Attributes:
        epoch: epoch of the next window, from 0.
        windows_done: number of windows of that epoch that were yielded.
        on_positioned: called when the position to resume from is reached; see `start_at`.
        align_ranks: wraps the iterator over micro-batches so that all ranks stop together; None if
            all ranks have the same number of micro-batches.
        exhausted: the last window had fewer than `accumulation` micro-batches, so the epoch is
            over.
    """

    def __init__(
        self,
        loader: Any,
        *,
        accumulation: int,
        batches_per_epoch: int | None,
        windows_per_epoch: int,
        read_window: WindowReader,
    ) -> None:
        self.loader = loader
        self.accumulation = accumulation
        self.batches_per_epoch = batches_per_epoch
        self.windows_per_epoch = windows_per_epoch
        self.read_window = read_window
        self.epoch = 0
        self.windows_done = 0
        self.on_positioned: Callable[[], None] | None = None
        self.align_ranks: Callable[[Iterator[Any]], Iterator[Any]] | None = None
        self.exhausted = False
        self._stopped = False
        self._batches_in_last = 0
        """Number of micro-batches in the last window."""
        self._loader_state: dict[str, Any] | None = None
        self._was_left = False
        """Whether a callback stopped the epoch of the loaded state before its end."""

        # Three kinds of loaders can resume: our own, those of other libraries with a `state_dict`,
        # and those without one, which are read again from the start of the epoch.
        self._source: EpochLoader | ReplayLoader | ForeignLoader
        if isinstance(loader, EpochLoader):
            self._source = loader
            loader.tracked = True
        elif hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
            self._source = ForeignLoader(loader)
        else:
            self._source = ReplayLoader(loader)

    def __len__(self) -> int:
        return self.windows_per_epoch

    def start_at(
        self,
        epoch: int,
        window: int,
        on_positioned: Callable[[], None] | None = None,
        loader_state: dict[str, Any] | None = None,
        was_left: bool = False,
    ) -> None:
        """Start the next iteration at a given window of an epoch.

        Args:
            epoch: the epoch, counted from 0.
            window: number of windows of the epoch that are done.
            on_positioned: called when the position is reached. At the start of an epoch this is
                before anything is read. Within an epoch it is after the loader has restored its
                state, or, without a state, after the first window is read, which is when the
                reference restores its generators.
            loader_state: the loader's `state_dict` at the position. Without it, or with the state
                of another kind of loader, batches are skipped by reading them.
            was_left: whether a callback has stopped the epoch of that state before its end.
        """
        self.epoch = epoch
        self.windows_done = window
        self.on_positioned = on_positioned
        self._was_left = was_left

        # The state may have been written by another kind of loader that the user has replaced.
        self._loader_state = None
        if loader_state is not None:
            if isinstance(self._source, _source_class(loader_state)):
                self._loader_state = loader_state
            elif 0 < window < self.windows_per_epoch:
                _log.warning(
                    "The checkpoint was written with a data loader of another kind, whose order "
                    "%s cannot repeat. Its first %s batches are skipped, so in this epoch samples "
                    "may be trained twice or not at all.",
                    type(self.loader).__name__,
                    window * self.accumulation,
                )

    @property
    def is_at_end(self) -> bool:
        """Return whether all windows of the epoch are done, so the next iteration is empty."""
        return self.windows_done >= self.windows_per_epoch

    @property
    def is_cut_short(self) -> bool:
        """Return whether the epoch was stopped before its end."""
        if not self._stopped:
            return False
        # Loaders of accelerate set `end_of_loader` when they yield their last batch.
        has_yielded_last = getattr(self.loader, "end_of_loader", False)
        return not (self.is_at_end or self.exhausted or has_yielded_last)

    def epochs_done(self, steps_in_epoch: float) -> float:
        """Return the number of epochs read so far, including the fraction of the current one.

        Args:
            steps_in_epoch: number of micro-batches per epoch.
        """
        micro_batches = self.windows_done * self.accumulation
        # The last window of an epoch may be shorter.
        if self.batches_per_epoch is not None:
            micro_batches = min(micro_batches, self.batches_per_epoch)
        return self.epoch + micro_batches / steps_in_epoch

    def set_accumulation(self, accumulation: int) -> None:
        """Change the size of windows; has no effect within an epoch.

        As in the reference, the number of windows per epoch is not changed, so with smaller windows
        the last batches of an epoch are not read.
        """
        if accumulation == self.accumulation or self.windows_done > 0:
            return
        self.accumulation = accumulation
        if self.batches_per_epoch is not None:
            windows = math.ceil(self.batches_per_epoch / accumulation)
            self.windows_per_epoch = min(windows, self.windows_per_epoch)

    def restore_before_epoch(self) -> None:
        """Restore the loader now, if the training resumes at the start of an epoch.

        Otherwise the iteration restores it.
        """
        if self.windows_done == 0:
            self._load_state_between_epochs()
            self._report_positioned()

    def stop(self) -> None:
        """End the epoch after the current window."""
        self._stopped = True

    def end_epoch(self) -> None:
        """Advance to the next epoch; called by the consumer, which may stop an iterator early."""
        self.epoch += 1
        self.windows_done = 0

    def state_dict(self, *, is_last_done: bool = True) -> dict[str, Any]:
        """Return the position of the next window and the state of the loader, for Lightning.

        Args:
            is_last_done: whether the step of the last window is finished; otherwise that window is
                repeated.
        """
        done = self.windows_done
        unused = 0
        if not is_last_done:
            done -= 1
            unused = self._batches_in_last
        return {"epoch": self.epoch, "done": done, "loader": self._source.state_dict(unused)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the position of a `state_dict`.

        Without this method Lightning would warn that the data cannot resume.
        """
        self.start_at(state["epoch"], state["done"], loader_state=state.get("loader"))

    def __iter__(self) -> Iterator[Window]:
        batches = self._begin_epoch()
        while self.windows_done < self.windows_per_epoch and not self._stopped:
            # The last window has the remaining batches.
            size = self.accumulation
            is_last = self.windows_done == self.windows_per_epoch - 1
            if is_last and self.batches_per_epoch is not None:
                size = self.batches_per_epoch % size or size

            # A user's override of `get_batch_samples` may raise StopIteration, which would end this
            # generator silently.
            try:
                micro_batches, items = self.read_window(batches, size)
            except StopIteration as error:
                raise stop_iteration_error(error) from error
            window = Window(micro_batches)
            window.items = items
            if getattr(self.loader, "end_of_loader", False):
                remainder = -1
                # Ranks that stop together, whatever they have read, repeat no samples.
                if self.align_ranks is None:
                    remainder = getattr(self.loader, "remainder", -1)
                window.loader_end = (True, remainder)

            self.exhausted = len(window) < self.accumulation
            if not window:
                break
            if self.on_positioned is not None:
                self._report_positioned()
            self.windows_done += 1
            self._batches_in_last = len(window)
            yield window

    def _begin_epoch(self) -> Iterator[object]:
        """Return the micro-batches from the current position; none at the end of an epoch."""
        self._stopped = False
        self.exhausted = False
        if self.windows_done == 0 or self.is_at_end:
            self._load_state_between_epochs()
            self._report_positioned()
        if self.is_at_end:
            return iter(())

        batches = self._micro_batches()
        if self.align_ranks is None:
            return batches
        return self.align_ranks(batches)

    def _report_positioned(self) -> None:
        """Call `on_positioned`, once."""
        callback = self.on_positioned
        self.on_positioned = None
        if callback is not None:
            callback()

    def _load_state_between_epochs(self) -> None:
        """Restore the loader at the start or at the end of an epoch.

        It is done only once, because an evaluation with the same collator may follow the end of an
        epoch.
        """
        source = self._source
        state = self._loader_state
        if state is None:
            return
        if isinstance(source, EpochLoader):
            # The saved epoch may have been stopped before its last batch.
            if state["handed_out"] > 0:
                next_epoch = self.epoch
                if self.is_at_end:
                    next_epoch += 1
                state = before_epoch(state, next_epoch)
        elif isinstance(source, ForeignLoader):
            # Restore dataset and collator now, because an evaluation may draw from their
            # generators. The iteration restores the rest.
            self._loader_state = source.restore_parts_of(state)
            return
        source.load_state_dict(state)
        self._loader_state = None

    def _micro_batches(self) -> Iterator[Any]:
        """Return the remaining micro-batches of the epoch.

        With a state the position is reached here, without one after the first window.
        """
        source = self._source
        state = self._loader_state
        self._loader_state = None
        batches_done = self.windows_done * self.accumulation
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(self.epoch)

        # Without a state, batches are counted.
        if state is None:
            if isinstance(source, ForeignLoader):
                return skip_items(iter(source), batches_done)
            source.skip(batches_done)
            return iter(source)

        if isinstance(source, ForeignLoader):
            batches = self._batches_of_foreign_loader(source, state, batches_done)
        else:
            source.load_state_dict(state, inside_epoch=True)
            if isinstance(source, ReplayLoader):
                source.skip(batches_done)
            batches = iter(source)
        self._report_positioned()
        return batches

    def _batches_of_foreign_loader(
        self, source: ForeignLoader, state: dict[str, Any], batches_done: int
    ) -> Iterator[Any]:
        """Return the batches after the state of a loader of another library.

        Args:
            source: the loader.
            state: its state.
            batches_done: number of batches of the epoch that have been trained.
        """
        if is_of_other_batches(state):
            return source.read_again(state, batches_done)
        if self.windows_done == 0:
            return source.epoch_after(state, was_left=self._was_left)
        if has_ended(state):
            # Only the end of the epoch remains; the next epoch starts from the state.
            self._loader_state = source.restore_parts_of(state)
            return iter(())
        source.load_state_dict(state)
        return iter(source)


def _source_class(loader_state: dict[str, Any]) -> type:
    """Return the class of the loader that wrote a state, whose entries are specific to it."""
    if "handed_out" in loader_state:
        return EpochLoader
    if "began" in loader_state:
        return ReplayLoader
    return ForeignLoader
