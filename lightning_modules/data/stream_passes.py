"""Save and restore the states of streams between two passes over them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from ..common.libraries import is_instance
from ..common.safe_serialization import UnsafeValueError, to_plain
from ..common.seeding import capture_host_rng, restore_host_rng
from .stateful_parts import walk_wrapped
from .worker_state import is_resumable


class StreamPasses:
    """Start each pass over a stream like in an uninterrupted training.

    A stream with `state_dict` and `load_state_dict` may count its passes, and its order may depend
    on that count.

    Args:
        dataset: any dataset; datasets without a state are not changed.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._is_new = True
        """Whether no pass has started and no state was loaded."""
        self._is_loaded = False
        """Whether the next pass starts at a loaded state."""
        self._has_loaded = False
        """Whether a state was loaded, for the next pass or an earlier one."""
        self._state_when_new: Any = None
        """The state before the first pass, if it was requested then."""

    def state(self) -> Any:
        """Return the state from which the stream starts its next pass.

        Returns None for a new stream, for a stream whose state cannot be stored in a checkpoint,
        and for streams of `datasets`, whose pass is set by `set_epoch`.
        """
        if not is_resumable(self.dataset) or any(_streams_of_datasets(self.dataset)):
            return None

        state = self.dataset.state_dict()
        try:
            to_plain(state)
        except UnsafeValueError:
            return None

        # Copy it, because the stream may modify the returned state.
        state = copy.deepcopy(state)
        if self._is_new:
            self._state_when_new = state
            return None
        return state

    def load(self, state: object) -> None:
        """Start the next pass at a state; None for that of a new stream.

        The stream may have been read since, because Lightning starts to read before it loads a
        checkpoint.
        """
        if state is None:
            state = self._state_when_new
        if state is not None and is_resumable(self.dataset):
            self._is_new = False
            self._is_loaded = True
            self._has_loaded = True
            self.dataset.load_state_dict(copy.deepcopy(state))

    def load_position(self, state: object) -> None:
        """Continue within a pass."""
        self._is_new = False
        self._has_loaded = True
        self.dataset.load_state_dict(state)

    def begin(self, open_pass: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Return the items of the next pass.

        Args:
            open_pass: iterates over the stream.
        """
        if self._has_loaded:
            forget_positions(self.dataset)
        is_loaded = self._is_loaded
        self._is_new = False
        self._is_loaded = False
        if not is_loaded:
            return open_pass()

        # The loaded state may be from the end of a pass.
        generators = capture_host_rng()
        return _next_if_empty(open_pass(), open_pass, generators)


def _next_if_empty(
    items: Iterator[Any], open_pass: Callable[[], Iterator[Any]], generators: dict[str, Any]
) -> Iterator[Any]:
    """Yield the items of a pass, or of the next one if it is empty.

    A stream whose state is at its end starts its next pass when it is iterated over again.
    """
    for item in items:
        yield item
        yield from items
        return
    restore_host_rng(generators)
    yield from open_pass()


def forget_positions(dataset: object) -> None:
    """Make the streams of `datasets` in a dataset start from the beginning again.

    Otherwise each pass of the same epoch would start at the last loaded state.
    """
    for stream in _streams_of_datasets(dataset):
        stream.load_state_dict(None)


def _streams_of_datasets(dataset: object) -> Iterator[Any]:
    """Yield the streams of `datasets` that a dataset is, wraps, or has as attributes."""
    for _, wrapped in walk_wrapped(dataset):
        attributes: dict[str, Any] = getattr(wrapped, "__dict__", {})
        for part in (wrapped, *attributes.values()):
            if is_instance(part, "datasets", "IterableDataset"):
                yield part
