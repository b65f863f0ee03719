"""Lengths of datasets and of their samples, and batches of samples of similar length, so that little is padding."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from ..common.libraries import is_instance

__all__ = [
    "LengthCache",
    "LengthGroupedSampler",
    "column_lengths",
    "get_length_grouped_indices",
    "has_length",
    "is_table",
    "sample_lengths",
]


def get_length_grouped_indices(
    lengths: Sequence[int] | np.ndarray | torch.Tensor,
    batch_size: int,
    mega_batch_mult: int | None = None,
    generator: torch.Generator | None = None,
) -> list[int]:
    """As `transformers.trainer_pt_utils.get_length_grouped_indices`, but sorted by numpy, and [] for no lengths.

    A random order is cut into chunks of `mega_batch_mult` batches, and each chunk is sorted, longest first. Then the
    longest sample of all changes places with the first one, so that memory runs out at once or never. As in the
    reference, the sample that it changes places with is then out of order in its chunk.

    Args:
        lengths: length of each sample.
        batch_size: samples per batch.
        mega_batch_mult: batches per chunk; by default 50, or fewer so that there are at least 4 chunks.
        generator: draws the random order, by default torch's global one.

    Returns:
        Each index once.
    """
    sizes = _as_array(lengths)
    order = torch.randperm(len(sizes), generator=generator).numpy()
    if not len(sizes):
        return []
    chunk = (mega_batch_mult or _default_multiple(len(sizes), batch_size)) * batch_size
    starts = range(0, len(sizes), chunk)
    for start in starts:
        part = order[start : start + chunk]
        # Stable on the negated lengths: equal lengths keep their random order.
        order[start : start + chunk] = part[np.argsort(-sizes[part], kind="stable")]
    longest = starts[int(np.argmax(sizes[order[starts]]))]
    order[0], order[longest] = order[longest], order[0]
    return order.tolist()


def _default_multiple(samples: int, batch_size: int) -> int:
    return max(1, min(samples // (batch_size * 4), 50))


def _as_array(lengths: Sequence[int] | np.ndarray | torch.Tensor) -> np.ndarray:
    array = lengths.numpy(force=True) if isinstance(lengths, torch.Tensor) else np.asarray(lengths)
    # Unsigned lengths cannot be negated.
    return array.astype(np.int64) if array.dtype.kind in "ub" else array


class LengthGroupedSampler(Sampler[int]):
    """As `transformers.trainer_pt_utils.LengthGroupedSampler`, but reads a `datasets.Dataset` by column.

    Args:
        batch_size: samples per batch.
        dataset: its samples are measured, once, when `lengths` is not given.
        lengths: length of each sample; the dataset is not read then.
        model_input_name: which column is measured, by default "input_ids".
        generator: draws the order of each epoch, by default torch's global one.

    Raises:
        ValueError: when there is neither a dataset nor lengths, or a sample has no such column.
    """

    def __init__(
        self,
        batch_size: int,
        dataset: Any = None,
        lengths: Sequence[int] | np.ndarray | torch.Tensor | None = None,
        model_input_name: str | None = None,
        generator: torch.Generator | None = None,
    ):
        if dataset is None and lengths is None:
            raise ValueError("`dataset` and `lengths` are both None; pass the one or the other to group by length.")
        if lengths is None:
            lengths = sample_lengths(dataset, model_input_name or "input_ids")
        self.batch_size = batch_size
        self.lengths: list[int] = _as_array(lengths).tolist()
        self.generator = generator

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        return iter(get_length_grouped_indices(self.lengths, self.batch_size, generator=self.generator))


def sample_lengths(
    dataset: Any,
    column: str,
    *,
    workers: int = 0,
    start_method: str | None = None,
    length_argument: str = "length_column_name",
) -> list[int]:
    """Return the length of one column in each sample.

    Args:
        dataset: map-style, its samples are mappings.
        column: name of the column to measure.
        workers: processes that measure large datasets at the same time; a table is read by column all the same.
        start_method: how they are started, by default torch's own way.
        length_argument: which argument names a column of lengths, for the error.

    Raises:
        ValueError: when the first sample is no mapping or has no such column.
    """
    if not len(dataset):
        return []
    first = dataset[0]
    if not isinstance(first, Mapping) or column not in first:
        seen = f"the columns {list(first)}" if isinstance(first, Mapping) else f"the type {type(first).__name__}"
        raise ValueError(
            f"Samples can be grouped by length when they are mappings with a column {column!r}, but the first one has "
            f"{seen}. Name the column to measure, or give the lengths in a column of their own (`{length_argument}`)."
        )
    lengths = _arrow_lengths(dataset, column)
    if lengths is not None:
        return lengths
    if workers and len(dataset) >= WORTH_WORKERS:
        return _measured_by_workers(dataset, column, workers, start_method)
    # Not every dataset raises IndexError at its end.
    return [len(sample[column]) for sample in itertools.islice(dataset, len(dataset))]


WORTH_WORKERS = 2000
"""Number of samples from which starting processes to measure them pays off."""


def column_lengths(dataset: Any, column: str) -> np.ndarray | None:
    """Return the lengths that a `datasets.Dataset` has in a column of its own; None without such a column.

    Args:
        dataset: of any kind.
        column: name of the column.

    Raises:
        ValueError: when a value is missing.
    """
    if not is_table(dataset) or column not in dataset.column_names:
        return None
    values = _arrow_column(dataset, column)
    if values.null_count:
        raise ValueError(
            f"The column {column!r} is to hold the length of each sample, but {values.null_count} of its "
            f"{len(values)} values are missing. Fill them in, or remove the column to have the samples measured."
        )
    return values.to_numpy()


def _measured_by_workers(dataset: Any, column: str, workers: int, start_method: str | None) -> list[int]:
    """Measure in worker processes, in the order of the samples, without drawing from the global generator."""
    loader = DataLoader(
        dataset,
        batch_size=256,
        num_workers=workers,
        collate_fn=functools.partial(_measured, column),
        generator=torch.Generator(),
        multiprocessing_context=start_method,
    )
    return list(itertools.chain.from_iterable(iter(loader)))


def _measured(column: str, samples: list[Any]) -> list[int]:
    return [len(sample[column]) for sample in samples]


def _arrow_lengths(dataset: Any, column: str) -> list[int] | None:
    """Read the lengths from the table of a `datasets.Dataset`; None without one, or where a transform makes samples."""
    if not is_table(dataset) or dataset.format["type"] == "custom" or column not in dataset.column_names:
        return None
    import pyarrow as pa
    import pyarrow.compute as pc

    values = _arrow_column(dataset, column)
    kinds = (pa.types.is_list, pa.types.is_large_list)
    if values.null_count or not any(kind(values.type) for kind in kinds):
        return None
    functions: Any = pc  # it makes them when it is imported
    return functions.list_value_length(values).to_pylist()


def is_table(dataset: Any) -> bool:
    """Return whether a dataset is a `datasets.Dataset`, without importing the library."""
    return is_instance(dataset, "datasets", "Dataset")


def _arrow_column(dataset: Any, column: str) -> Any:
    return dataset.with_format("arrow").select_columns([column])[:].column(column)


_KEPT_ALIVE = 4


class _Entry(NamedTuple):
    samples: int
    lengths: Any


class LengthCache:
    """Cache of lengths by dataset object and its number of samples.

    Datasets are held by weak reference. Of those that have none, such as lists, the last few are kept alive here.
    """

    def __init__(self) -> None:
        self._watched: dict[tuple[int, Any], tuple[weakref.ref[Any], _Entry]] = {}
        self._held: OrderedDict[tuple[int, Any], tuple[Any, _Entry]] = OrderedDict()

    def get(self, dataset: Any, key: Any, measure: Callable[[], Any]) -> Any:
        """Return the lengths of a dataset, measuring them on a miss.

        Args:
            dataset: has a length.
            key: what else the lengths depend on, such as the name of a column.
            measure: finds them out.
        """
        name = (id(dataset), key)
        found = self._watched.get(name) or self._held.get(name)
        if found is not None and found[1].samples == len(dataset):
            return found[1].lengths
        entry = _Entry(len(dataset), measure())
        try:
            self._watched[name] = weakref.ref(dataset, lambda _: self._watched.pop(name, None)), entry
        except TypeError:
            self._hold(name, dataset, entry)
        return entry.lengths

    def _hold(self, name: tuple[int, Any], dataset: Any, entry: _Entry) -> None:
        self._held[name] = dataset, entry
        self._held.move_to_end(name)
        while len(self._held) > _KEPT_ALIVE:
            self._held.popitem(last=False)


def has_length(dataset: Any) -> bool:
    """As `transformers.trainer_utils.has_length`: whether `len()` works."""
    try:
        return len(dataset) is not None
    except (TypeError, AttributeError, NotImplementedError):
        return False
