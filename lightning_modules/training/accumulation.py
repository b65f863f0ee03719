"""Windows of micro-batches, so that one Lightning batch is one optimizer step, and the sum of
their losses.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..common.seeding import capture_host_rng, restore_host_rng
from ..common.stop_iteration import misplaced
from ..data.epoch_loader import EpochLoader
from ..data.iteration import iterate
from ..data.loader_state import RereadLoader, before_epoch, skip_items

_CHUNK = 1024
"""Losses that are kept as tensors of their own, before they are packed into one."""

Reader = Callable[[Iterator[Any], int], tuple[list[Any], Any]]


class Window(list[Any]):
    """The micro-batches of one optimizer step; the last window of an epoch may have fewer than the
    others.

    Attributes:
        items: number of items (labels that count) in the whole window, over all processes; None if
            not counted.
    """

    __slots__ = ("items",)
    items: Any


class WindowLoader:
    """Reads a loader in windows of `accumulation` micro-batches, from any position of an epoch on.

    Nothing is read, and no random number drawn, before the first `next()` of an epoch: Lightning
    makes iterators earlier than the reference does.

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

    def __init__(
        self, loader: Any, *, accumulation: int, batches: int | None, windows: int, read: Reader
    ) -> None:
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
        self._source: Any = loader
        if isinstance(loader, EpochLoader):
            loader.tracked = True
        elif not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
            self._source = RereadLoader(loader)

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
            on_positioned: called once the position is reached: before anything is read at the start
                of an epoch. In the middle of one, where the loader's state is known, when nothing
                has to be read any more to get there; otherwise after the first window is read,
                where the reference restores its generators.
            loader_state: what the loader's `state_dict` was there. Without it, or with that of
                another kind of loader, the batches that were read are skipped.
        """
        self.epoch = epoch
        self.done = window
        self.on_positioned = on_positioned
        self._loader_state = None
        if loader_state is not None and self._fits(loader_state):
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
        """Advance to the next epoch; called by the consumer, which may leave an iterator
        unfinished.
        """
        self.epoch, self.done = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next window, and of the loader, as Lightning's protocol
        asks.
        """
        return {"epoch": self.epoch, "done": self.done, "loader": self._source.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the position of a `state_dict`."""
        self.start_at(state["epoch"], state["done"], loader_state=state.get("loader"))

    def __iter__(self) -> Iterator[Window]:
        batches = self._begin_epoch()
        while self.done < self.windows and not self._stopped:
            size = self.accumulation
            if self.batches is not None and self.done == self.windows - 1:
                size = self.batches % size or size
            try:
                micro_batches, items = self.read(batches, size)
            except StopIteration as error:
                raise misplaced(error) from error
            window = Window(micro_batches)
            window.items = items
            self.exhausted = len(window) < self.accumulation
            if not window:
                break
            if self.on_positioned is not None:
                self._positioned()
            self.done += 1
            yield window

    def _begin_epoch(self) -> Iterator[Any]:
        """Return the micro-batches from the position on; nothing is read of an epoch that is at
        its end.
        """
        self._stopped = False
        self.exhausted = False
        if self.done == 0 or self.is_at_end:
            self._load_state_between_epochs()
            self._positioned()
        if self.is_at_end:
            return iter(())
        batches = self._micro_batches()
        return batches if self.together is None else self.together(batches)

    def _positioned(self) -> None:
        callback = self.on_positioned
        self.on_positioned = None
        if callback is not None:
            callback()

    def _load_state_between_epochs(self) -> None:
        """Restore the loader, once, since an evaluation with the same collator may follow the
        end of an epoch.
        """
        state = self._loader_state
        if state is None or self._is_foreign:
            return
        # The epoch of the state may have been ended before its last batch.
        if isinstance(self._source, EpochLoader) and state["handed_out"] > 0:
            state = before_epoch(state, self.epoch + self.is_at_end)
        self._source.load_state_dict(state)
        self._loader_state = None

    def _micro_batches(self) -> Iterator[Any]:
        source = self._source
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(self.epoch)
        state = self._loader_state
        self._loader_state = None
        skipped = self.done * self.accumulation

        # Without a state the batches are counted.
        if state is None and self._is_foreign:
            return skip_items(iterate(source), skipped)
        if state is None:
            source.skip(skipped)
            return iter(source)

        if self._is_foreign and self.done == 0:
            return self._epoch_after(state)
        if self._is_foreign:
            source.load_state_dict(state)
            batches = iterate(source)
        else:
            source.load_state_dict(state, inside_epoch=True)
            if isinstance(source, RereadLoader):
                source.skip(skipped)
            batches = iter(source)
        self._positioned()
        return batches

    def _epoch_after(self, state: dict[str, Any]) -> Iterator[Any]:
        """Start the epoch after one that ended in this state of a foreign loader, which may not
        know that it ended.
        """
        rng = capture_host_rng()
        self.loader.load_state_dict(state)
        batches = iterate(self.loader)
        for first in batches:
            return itertools.chain([first], batches)
        restore_host_rng(rng)
        return iterate(self.loader)

    @property
    def _is_foreign(self) -> bool:
        """Return whether the loader is of another library, and has its own state."""
        return not isinstance(self._source, (EpochLoader, RereadLoader))

    def _fits(self, state: dict[str, Any]) -> bool:
        """Return whether a state may be that of the loader, which may have been replaced in the
        meantime.
        """
        if isinstance(self._source, EpochLoader):
            return "handed_out" in state
        if isinstance(self._source, RereadLoader):
            return "began" in state
        return "handed_out" not in state and "began" not in state


class LossMeter:
    """Sum micro-batch losses as the reference does, to the last bit, without a device
    synchronisation at each step.

    The reference adds each loss to a float32 tensor, and its filter for NaN synchronises for every
    loss. Here the losses are kept as they come, and added up in the same order when a log is due.

    Args:
        skip_not_finite: put the mean of the window so far in the place of a NaN or infinite loss.

    Attributes:
        not_finite: how many of the losses that the last `take` added up were NaN or infinite.
        first_not_finite: the `steps_since_log` of the first of them, None if there was none.
    """

    def __init__(self, skip_not_finite: bool) -> None:
        self.skip_not_finite = skip_not_finite
        self.not_finite = 0
        self.first_not_finite: int | None = None
        self._rest = 0.0
        self._losses: list[torch.Tensor] = []
        self._chunks: list[tuple[torch.Tensor, list[int]]] = []
        self._steps: list[int] = []

    def add(self, loss: torch.Tensor, steps_since_log: int) -> None:
        """Keep the loss of a micro-batch.

        Args:
            loss: scalar, detached.
            steps_since_log: optimizer steps since the last log, before the current one.
        """
        self._losses.append(loss)
        self._steps.append(steps_since_log)
        if len(self._losses) >= _CHUNK:
            self._pack()

    def state_dict(self) -> dict[str, Any]:
        """Return the losses since the last `take`, for `load_state_dict`; this synchronises with
        the device.
        """
        self._pack()
        chunks = [chunk.double().cpu() for chunk, _ in self._chunks]
        losses = torch.cat(chunks) if chunks else torch.zeros(0, device="cpu")
        steps = [since for _, chunk in self._chunks for since in chunk]
        self._chunks = [(losses, steps)]  # so that the time of the next one does not grow
        return {"rest": self._rest, "losses": losses, "steps": steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a `state_dict`, with the very same sums."""
        self._rest = state["rest"]
        self._losses, self._steps = [], []
        self._chunks = [(state["losses"], list(state["steps"]))] if state["steps"] else []

    @staticmethod
    def joined(states: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the mean of the `state_dict`s of several processes, as one."""
        steps = torch.tensor(
            [step for state in states for step in state["steps"]], dtype=torch.int64, device="cpu"
        )
        losses = torch.cat([state["losses"].double() for state in states]) / len(states)
        order = torch.argsort(steps, stable=True)
        rest = sum(state["rest"] for state in states) / len(states)
        return {"rest": rest, "losses": losses[order], "steps": steps[order].tolist()}

    def begin_with(self, total: float) -> None:
        """Start the sum at `total`, replacing the rest of the last `take`."""
        self._rest = _float32(total)

    def take(self) -> float:
        """Return the sum since the last call, in float32.

        Once not finite, the sum stays NaN, as in the reference, which resets it by subtracting it
        from itself.
        """
        self._pack()
        total = self._rest
        self.not_finite, self.first_not_finite = 0, None
        for chunk, steps in self._chunks:
            for loss, since in zip(chunk.tolist(), steps, strict=True):
                total = self._added(total, loss, since)
        self._chunks = []
        self._rest = total - total
        return total

    def _added(self, total: float, loss: float, steps_since_log: int) -> float:
        if not math.isfinite(loss):
            self.not_finite += 1
            if self.first_not_finite is None:
                self.first_not_finite = steps_since_log
            if self.skip_not_finite:
                return _float32(total + _float32(total / (1 + steps_since_log)))
        return _float32(total + loss)

    def _pack(self) -> None:
        if self._losses:
            self._chunks.append(
                (torch.stack([loss.reshape(()) for loss in self._losses]), self._steps)
            )
            self._losses, self._steps = [], []


def _float32(value: float) -> float:
    """Round to float32; NumPy would warn of an infinite result."""
    return ctypes.c_float(value).value
