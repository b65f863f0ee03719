"""Read the data positions that checkpoints store in one file for each rank."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from ...lightning_modules import checkpoints
from ...lightning_modules.common.file_names import data_state_name
from ...lightning_modules.common.safe_serialization import from_plain
from ..arguments.rank_groups import data_parallel_rank

if TYPE_CHECKING:
    from ..arguments import TrainingArguments

PlainState = dict[str, Any]
"""A state in nested plain values, as stored in files."""


@dataclass(frozen=True)
class RequestedArguments:
    """The user's values of the arguments that may be adapted to keep the global batch size.

    The names of the fields are the keys in the files.
    """

    batch: int
    """`per_device_train_batch_size`."""
    accumulation: int
    """`gradient_accumulation_steps`."""


@dataclass(frozen=True)
class Layout:
    """Layout of a step's samples over processes, batches and micro-batches.

    The names of the fields are the keys in the files.
    """

    world_size: int
    """Number of data-parallel processes, which get different batches."""
    batch_size: int
    """Samples per batch in one process."""
    accumulation: int
    """Batches per step in one process."""
    tokens: int | None = None
    """`max_tokens_per_batch`, if batches have a token budget."""

    @property
    def step_size(self) -> int:
        """Return the samples per step over all processes, or the batches with a token budget.

        With a token budget, batches differ in their number of samples, so batches are counted.
        """
        batches = self.world_size * self.accumulation
        if self.tokens is not None:
            return batches
        return batches * self.batch_size

    def changes_from(self, before: Layout) -> str:
        """Describe which arguments differ from an earlier layout, with both values."""
        changes: list[str] = []
        for argument, value, value_before in (
            ("world_size", self.world_size, before.world_size),
            ("per_device_train_batch_size", self.batch_size, before.batch_size),
            ("gradient_accumulation_steps", self.accumulation, before.accumulation),
        ):
            if value != value_before:
                changes.append(f"{argument}={value} instead of {value_before}")
        return ", ".join(changes)

    def to_plain(self) -> dict[str, int]:
        """Return the entries for a file, which has `tokens` only with a token budget."""
        plain = asdict(self)
        if self.tokens is None:
            del plain["tokens"]
        return plain


@dataclass(frozen=True)
class StoredPosition:
    """Position of one rank, written by `DataPosition.save` or by plain Lightning.

    Lightning's positions (see `lightning_modules.tasks.loader_positions.facade_position`) have
    only the entries without a default in `from_plain`.
    """

    epoch: int
    windows_done: int
    """Number of completed steps of the epoch."""
    windows_per_epoch: int
    layout: Layout
    loader_state: PlainState | None
    loader_batch: int | None
    """Samples per batch reported by the loader, see `ElasticResumption.loader_batch`."""
    requested: RequestedArguments | None
    data_seed: int | None
    """The seed of the order: `data_seed`, or `seed` if that was not set."""
    copies: int
    """Number of consecutive ranks that read the same data, see `copies_of_batches`."""
    steps_ahead: int
    """See `ElasticResumption.steps_ahead`."""
    is_epoch_ended: bool
    """Whether the end of the epoch, after its last step, was complete."""
    was_epoch_left: bool
    """Whether a callback had requested to end the epoch early."""
    progress: PlainState | None
    """Meters for the next log."""
    generators_before_epoch: PlainState | None
    interrupted_evaluation: PlainState | None
    """State of the evaluation during which the checkpoint was written."""
    evaluation_parts: list[PlainState] | None
    """States of `evaluation_parts`."""
    evaluation_workers: PlainState
    """States of the persistent workers of evaluation loaders, by name of the loader."""

    @classmethod
    def from_plain(cls, entries: PlainState) -> Self:
        """Build the position from the entries of a file.

        Raises:
            TypeError: an entry is missing, or has another type.
        """
        entry = partial(_entry, entries)
        requested = entry("asked", Mapping | None)
        if requested is not None:
            requested = RequestedArguments(**requested)
        return cls(
            epoch=entry("epoch", int),
            windows_done=entry("done", int),
            windows_per_epoch=entry("windows", int),
            layout=Layout(**entry("layout", Mapping)),
            loader_state=entry("loader", Mapping | None),
            loader_batch=entry("loader_batch", int | None),
            requested=requested,
            data_seed=entry("data_seed", int | None),
            copies=entry("copies", int, 1),
            steps_ahead=entry("ahead", int, 0),
            is_epoch_ended=entry("ended", bool, True),
            was_epoch_left=entries.get("left", False),
            progress=entry("progress", Mapping | None),
            generators_before_epoch=entries.get("before_epoch"),
            interrupted_evaluation=entry("in_evaluation", Mapping | None),
            evaluation_parts=entries.get("evaluation"),
            evaluation_workers=entry("evaluated", Mapping, {}),
        )

    @property
    def is_at_end(self) -> bool:
        """Return whether all steps of the epoch were completed."""
        return self.windows_done >= self.windows_per_epoch


class CheckpointPositions:
    """Positions of all ranks in a checkpoint. Each file is read once, on first use.

    Args:
        checkpoint: the folder of the checkpoint.
        first_path: the file of the lowest rank.
        rank: the data-parallel rank of this process.
    """

    def __init__(self, checkpoint: str, first_path: str, rank: int) -> None:
        self.checkpoint = checkpoint
        first = _load(first_path)
        self._positions = {first_path: first}
        """Positions that have been read, by path."""
        self._copies = first.copies

        self.own = self.of_rank(rank) or first
        """The position of this rank. If its file is missing, the first file is used, because each
        node may only have files of its own processes, and a run with more processes has new ranks.
        """

    @classmethod
    def find(cls, checkpoint: str | None, args: TrainingArguments) -> Self | None:
        """Return the positions in a checkpoint; None if it has none, as checkpoints of other
        libraries.

        Args:
            checkpoint: the folder of the checkpoint.
            args: the arguments of this training, from which the rank follows.
        """
        if checkpoint is None:
            return None
        paths = glob.glob(os.path.join(glob.escape(checkpoint), data_state_name("*")))
        if not paths:
            return None
        # Shorter names first: 9 comes before 10.
        first_path = min(sorted(paths), key=len)
        return cls(checkpoint, first_path, data_parallel_rank(args))

    @property
    def of_rank_0(self) -> StoredPosition:
        """Return the position of rank 0, whose order all ranks follow; this rank's if it is
        missing.
        """
        return self.of_rank(0) or self.own

    def of_rank(self, rank: int) -> StoredPosition | None:
        """Return the position of a data-parallel rank; None if its file is missing."""
        # Several processes may have read the same data. The first of them wrote this file.
        path = os.path.join(self.checkpoint, data_state_name(rank * self._copies))
        if path not in self._positions and os.path.isfile(path):
            self._positions[path] = _load(path)
        return self._positions.get(path)


def _load(path: str) -> StoredPosition:
    content = checkpoints.load_torch(path)
    try:
        return StoredPosition.from_plain(dict(from_plain(content)))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"{path} does not hold a position in the data ({error!r}): use another checkpoint, or "
            "delete the file to compute the position from the step."
        ) from error


def _entry(entries: PlainState, name: str, types: Any, default: Any = None) -> Any:
    """Return an entry of a file after checking its type.

    Without a default, a missing entry raises unless its types include None.
    """
    value = entries.get(name, default)
    if not isinstance(value, types):
        raise TypeError(f"{name}={value!r:.60}, expected {types}")
    return value
