"""Windows of micro-batches, and the sum of their losses.

One Lightning batch is one window, and so one optimizer step.
"""

from __future__ import annotations

import ctypes
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..common.stop_iteration import stop_iteration_error
from ..data.epoch_loader import EpochLoader
from ..data.loader_state import (
    ForeignLoader,
    RereadLoader,
    before_epoch,
    has_ended,
    is_of_other_batches,
    skip_items,
)

_log = logging.getLogger(__name__)

_MOST_TENSORS = 1024
"""Losses that are kept as separate tensors before they are joined into one."""

Items = torch.Tensor | int | None
"""Number of items (labels that count) in a window, over all processes; None if not counted."""

WindowReader = Callable[[Iterator[Any], int], tuple[list[Any], Items]]
"""`(batches, n)` -> (up to n micro-batches, number of items in them)."""


class Window(list[Any]):
    """The micro-batches of one optimizer step; the last window of an epoch may be shorter.

    Attributes:
        items: number of items (labels that count) in the whole window, over all processes; None if
            not counted.
    """

    __slots__ = ("items",)
    items: Items


class WindowLoader:
    """Reads a loader in windows of `accumulation` micro-batches, starting anywhere in an epoch.

    Nothing is read, and no random number drawn, before the first `next()` of an epoch: Lightning
    makes iterators earlier than the reference does.

    Args:
        loader: yields micro-batches; any iterable.
        accumulation: micro-batches per optimizer step.
        batches_per_epoch: micro-batches in an epoch, None if unknown.
        windows_per_epoch: windows in an epoch, an upper bound if `batches_per_epoch` is None.
        read_window: reads the micro-batches of one window, and counts their items.

    Attributes:
        epoch: epoch of the next window, from 0.
        windows_done: windows of that epoch that were yielded.
        on_positioned: called once the position to resume at is reached; see `start_at`.
        align_ranks: wraps the iterator over micro-batches so that all ranks stop together; None if
            they have equally many.
        exhausted: the loader yielded fewer batches than requested, so the epoch is over.
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
        self._loader_state: dict[str, Any] | None = None
        self._was_left = False
        """The iteration of that state was left before its end."""

        # Three kinds of loaders can resume: ours, those of other libraries that have a state, and
        # those without one, which are read again from the start of the epoch.
        self._source: EpochLoader | RereadLoader | ForeignLoader
        if isinstance(loader, EpochLoader):
            self._source = loader
            loader.tracked = True
        elif hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
            self._source = ForeignLoader(loader)
        else:
            self._source = RereadLoader(loader)

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
        """Start the next iteration at a window of an epoch, to resume there.

        Args:
            epoch: epoch, from 0.
            window: number of its windows that are done.
            on_positioned: called once the position is reached. At the start of an epoch that is
                before anything is read. In the middle of one it is when the loader has restored its
                state; without a state, after the first window is read, where the reference restores
                its generators.
            loader_state: the loader's `state_dict` at the position. Without it, or with the state
                of another kind of loader, batches are skipped by reading them.
            was_left: a callback has stopped the epoch of that state.
        """
        self.epoch = epoch
        self.windows_done = window
        self.on_positioned = on_positioned
        self._was_left = was_left

        # The state may come from another kind of loader, which the user has replaced.
        self._loader_state = None
        if loader_state is not None:
            is_epoch_loader = isinstance(self._source, EpochLoader)
            is_reread = isinstance(self._source, RereadLoader)
            has_same_kind = ("handed_out" in loader_state) == is_epoch_loader
            if has_same_kind and ("began" in loader_state) == is_reread:
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
        """Return whether all windows of the epoch are done, so that the next iteration is empty."""
        return self.windows_done >= self.windows_per_epoch

    @property
    def is_cut_short(self) -> bool:
        """Return whether the epoch was stopped before its end."""
        if not self._stopped:
            return False
        all_is_read = self.is_at_end or self.exhausted
        return not (all_is_read or getattr(self.loader, "end_of_loader", False))

    def epochs_done(self, steps_in_epoch: float) -> float:
        """Return the epochs read so far, including the fraction of the current one.

        Args:
            steps_in_epoch: micro-batches of an epoch.
        """
        micro_batches = self.windows_done * self.accumulation
        # The last window of an epoch may be shorter.
        if self.batches_per_epoch is not None:
            micro_batches = min(micro_batches, self.batches_per_epoch)
        return self.epoch + micro_batches / steps_in_epoch

    def accumulate(self, accumulation: int) -> None:
        """Read windows of another size from the next epoch on; not in the middle of one.

        An epoch of smaller windows has as many as before, as in the reference.
        """
        if accumulation == self.accumulation or self.windows_done > 0:
            return
        self.accumulation = accumulation
        if self.batches_per_epoch is not None:
            windows = math.ceil(self.batches_per_epoch / accumulation)
            self.windows_per_epoch = min(windows, self.windows_per_epoch)

    def restore_before_epoch(self) -> None:
        """Restore the loader now, if the training resumes at the start of an epoch.

        Otherwise it is restored by the iteration.
        """
        if self.windows_done == 0:
            self._load_state_between_epochs()
            self._report_positioned()

    def stop(self) -> None:
        """End the epoch after the current window."""
        self._stopped = True

    def end_epoch(self) -> None:
        """Advance to the next epoch; called by the consumer, which may leave an iterator early."""
        self.epoch += 1
        self.windows_done = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next window, and the loader's, in Lightning's protocol."""
        return {
            "epoch": self.epoch,
            "done": self.windows_done,
            "loader": self._source.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the position of a `state_dict`."""
        self.start_at(state["epoch"], state["done"], loader_state=state.get("loader"))

    def __iter__(self) -> Iterator[Window]:
        batches = self._begin_epoch()
        while self.windows_done < self.windows_per_epoch and not self._stopped:
            # The last window takes the remaining batches.
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

            self.exhausted = len(window) < self.accumulation
            if not window:
                break
            if self.on_positioned is not None:
                self._report_positioned()
            self.windows_done += 1
            yield window

    def _begin_epoch(self) -> Iterator[object]:
        """Return the micro-batches from the position on; none at the end of an epoch."""
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

        Only once: an evaluation with the same collator may follow the end of an epoch.
        """
        source = self._source
        state = self._loader_state
        if state is None:
            return
        if isinstance(source, EpochLoader):
            # The epoch of the state may have been stopped before its last batch.
            if state["handed_out"] > 0:
                state = before_epoch(state, self.epoch + self.is_at_end)
        elif isinstance(source, ForeignLoader):
            # An evaluation draws from dataset and collator; the iteration restores the rest.
            self._loader_state = source.restore_parts_of(state)
            return
        source.load_state_dict(state)
        self._loader_state = None

    def _micro_batches(self) -> Iterator[Any]:
        """Return the micro-batches of the epoch that are not done yet."""
        source = self._source
        state = self._loader_state
        self._loader_state = None
        batches_done = self.windows_done * self.accumulation
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(self.epoch)

        if isinstance(source, ForeignLoader):
            if state is None:
                return skip_items(iter(source), batches_done)
            if is_of_other_batches(state):
                batches = source.read_again(state, batches_done)
                self._report_positioned()
                return batches
            if self.windows_done == 0:
                return source.epoch_after(state, was_left=self._was_left)
            if has_ended(state):
                # Only the end of the epoch is missing; the next epoch begins from the state.
                self._loader_state = source.restore_parts_of(state)
                self._report_positioned()
                return iter(())
            source.load_state_dict(state)
            batches = iter(source)
            self._report_positioned()
            return batches

        # Without a state, batches are counted.
        if state is None:
            source.skip(batches_done)
            return iter(source)

        source.load_state_dict(state, inside_epoch=True)
        if isinstance(source, RereadLoader):
            source.skip(batches_done)
        batches = iter(source)
        self._report_positioned()
        return batches


class LossMeter:
    """Sum micro-batch losses to the same bits as the reference, without synchronising each step.

    The reference adds each loss to a float32 tensor, and its filter for NaN synchronises with the
    device for every loss. Here the losses stay on the device, and are added up in the same order
    when a log is due.

    Args:
        skip_not_finite: replace a NaN or infinite loss by the mean since the last log.

    Attributes:
        not_finite_steps: the `steps_since_log` of the steps with a NaN or infinite loss, among
            those that the last `take` added up.
    """

    def __init__(self, skip_not_finite: bool) -> None:
        self.skip_not_finite = skip_not_finite
        self.not_finite_steps: list[int] = []
        self._start = 0.0
        """The sum begins with this: 0, or NaN once a sum was not finite."""
        self._losses: list[torch.Tensor] = []
        """Losses on their device, of any number each."""
        self._saved = torch.zeros(0, dtype=torch.float64, device="cpu")
        """Earlier losses, which the last `state_dict` has read from the device."""
        self._steps: list[int] = []
        """The `steps_since_log` of each loss, those of `_saved` first."""

    def add(self, loss: torch.Tensor, steps_since_log: int) -> None:
        """Keep the loss of a micro-batch.

        Args:
            loss: scalar, detached.
            steps_since_log: optimizer steps since the last log, before the current one.
        """
        self._losses.append(loss)
        self._steps.append(steps_since_log)
        if len(self._losses) >= _MOST_TENSORS:
            self._losses = [self._joined_losses()]

    def state_dict(self) -> dict[str, Any]:
        """Return the losses since the last `take`; this synchronises with the device."""
        if self._losses:
            losses = self._joined_losses().double().cpu()
            self._saved = torch.cat([self._saved, losses])
            self._losses = []
        return {"rest": self._start, "losses": self._saved, "steps": list(self._steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a `state_dict`, with the very same sums."""
        self._start = state["rest"]
        self._losses = []
        self._saved = state["losses"].double()
        self._steps = list(state["steps"])

    @staticmethod
    def joined(states: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the mean of the `state_dict`s of several processes, as one."""
        all_steps: list[int] = []
        for state in states:
            all_steps += state["steps"]
        steps = torch.tensor(all_steps, dtype=torch.int64, device="cpu")
        losses = torch.cat([state["losses"].double() for state in states]) / len(states)

        # Losses of the same step come one after the other, in the order of the processes.
        order = torch.argsort(steps, stable=True)
        start = sum(state["rest"] for state in states) / len(states)
        return {"rest": start, "losses": losses[order], "steps": steps[order].tolist()}

    def begin_with(self, total: float) -> None:
        """Start the sum at `total`."""
        self._start = _float32(total)

    def take(self) -> float:
        """Return the sum since the last call, in float32.

        Once not finite, the sum stays NaN, as in the reference, which resets it by subtracting it
        from itself.
        """
        losses = self.state_dict()["losses"]
        total = self._start
        self.not_finite_steps = []
        for loss, steps_since_log in zip(losses.tolist(), self._steps, strict=True):
            total = self._added(total, loss, steps_since_log)
        self._saved = losses[:0]
        self._steps = []

        # 0, or NaN for a sum that is not finite.
        self._start = total - total
        return total

    def _added(self, total: float, loss: float, steps_since_log: int) -> float:
        """Return the sum of `total` and a loss in float32; count a loss that is not finite."""
        if not math.isfinite(loss):
            # Micro-batches of one step follow each other.
            if self.not_finite_steps[-1:] != [steps_since_log]:
                self.not_finite_steps.append(steps_since_log)
            if self.skip_not_finite:
                # The mean as the reference takes it, with the current step in its divisor.
                mean = _float32(total / (1 + steps_since_log))
                return _float32(total + mean)
        return _float32(total + loss)

    def _joined_losses(self) -> torch.Tensor:
        return torch.cat([loss.reshape(-1) for loss in self._losses])


def _float32(value: float) -> float:
    """Round to float32; NumPy would warn of an infinite result."""
    return ctypes.c_float(value).value
