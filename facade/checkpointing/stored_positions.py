"""Positions in the data that checkpoints store: one file for each rank, read into dataclasses."""

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
from ..arguments.parallelism import data_rank

if TYPE_CHECKING:
    from ..arguments import TrainingArguments

PlainState = dict[str, Any]
"""A state in nested plain values, as files hold it."""


@dataclass(frozen=True)
class RequestedArguments:
    """The arguments, as the user gave them, that may be adapted to keep the samples per step.

    The names of the fields are the keys in the files.
    """

    batch: int
    """`per_device_train_batch_size`."""
    accumulation: int
    """`gradient_accumulation_steps`."""


@dataclass(frozen=True)
class Layout:
    """Layout of the samples of a step: over processes, batches and micro-batches.

    The names of the fields are the keys in the files.
    """

    world_size: int
    """Data-parallel processes, which get different batches."""
    batch_size: int
    """Samples of a batch in one process."""
    accumulation: int
    """Batches of a step in one process."""
    tokens: int | None = None
    """`max_tokens_per_batch`, if batches are filled up to a number of tokens."""

    @property
    def step_size(self) -> int:
        """The samples of a step over all processes; with a token budget, its batches.

        Batches of a token budget differ in their number of samples, so they are counted instead.
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
        """Return the entries in the files, which have `tokens` only with a token budget."""
        plain = asdict(self)
        if self.tokens is None:
            del plain["tokens"]
        return plain


@dataclass(frozen=True)
class StoredPosition:
    """The position of one rank, as `DataPosition.save` or plain Lightning wrote it.

    Lightning's positions (see `lightning_modules.tasks.loader_positions.facade_position`) have
    only the entries without a default in `from_plain`.
    """

    epoch: int
    windows_done: int
    """Steps of the epoch that were done."""
    windows_per_epoch: int
    layout: Layout
    loader_state: PlainState | None
    loader_batch: int | None
    """Samples of a batch that the loader reported, see `ElasticResumption.loader_batch`."""
    requested: RequestedArguments | None
    copies: int
    """Consecutive ranks that read the same data, see `copies_of_batches`."""
    steps_ahead: int
    """See `ElasticResumption.steps_ahead`."""
    is_epoch_ended: bool
    """The epoch's end, with what follows its last step, was over."""
    was_epoch_left: bool
    """A callback had requested to end the epoch early."""
    progress: PlainState | None
    """Meters for the next log."""
    generators_before_epoch: PlainState | None
    interrupted_evaluation: PlainState | None
    """State of the evaluation during which the checkpoint was written."""
    evaluation_collator: list[PlainState] | None
    evaluation_workers: PlainState
    """States of the persistent workers of evaluation loaders, by name of the loader."""

    @classmethod
    def from_plain(cls, entries: PlainState) -> Self:
        """Return the position in the entries of a file.

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
            copies=entry("copies", int, 1),
            steps_ahead=entry("ahead", int, 0),
            is_epoch_ended=entry("ended", bool, True),
            was_epoch_left=entries.get("left", False),
            progress=entry("progress", Mapping | None),
            generators_before_epoch=entries.get("before_epoch"),
            interrupted_evaluation=entry("in_evaluation", Mapping | None),
            evaluation_collator=entries.get("evaluation"),
            evaluation_workers=entry("evaluated", Mapping, {}),
        )

    @property
    def is_at_end(self) -> bool:
        """Whether all steps of the epoch were done."""
        return self.windows_done >= self.windows_per_epoch


class CheckpointPositions:
    """The positions of the ranks in a checkpoint. Each file is read once, when it is needed.

    Args:
        checkpoint: the folder of the checkpoint.
        first_path: the file of the lowest rank.
        rank: the data-parallel rank of this process.
    """

    def __init__(self, checkpoint: str, first_path: str, rank: int) -> None:
        self.checkpoint = checkpoint
        first = _load(first_path)
        self._positions = {first_path: first}
        """The positions that were read, by path."""
        self._copies = first.copies

        self.own = self.of_rank(rank) or first
        """The position of this rank. If its file is missing, the first file is used: each node may
        hold only the files of its own processes, and a run with more processes has new ranks.
        """

    @classmethod
    def find(cls, checkpoint: str | None, args: TrainingArguments) -> Self | None:
        """Return the positions in a checkpoint; None if it has none, as those of other libraries.

        Args:
            checkpoint: the folder of the checkpoint.
            args: the arguments of this training, which tell the rank of this process.
        """
        if checkpoint is None:
            return None
        paths = glob.glob(os.path.join(glob.escape(checkpoint), data_state_name("*")))
        if not paths:
            return None
        # Shorter names first: 9 comes before 10.
        first_path = min(sorted(paths), key=len)
        return cls(checkpoint, first_path, data_rank(args))

    @property
    def of_rank_0(self) -> StoredPosition:
        """The position of rank 0, whose order all ranks follow; this rank's if it is missing."""
        return self.of_rank(0) or self.own

    def of_rank(self, rank: int) -> StoredPosition | None:
        """Return the position of a data-parallel rank; None if its file is missing."""
        # Several processes may have read the same data; the first of them wrote this file.
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
            f"{path} does not hold a position in the data ({error!r}): take another checkpoint, or "
            "delete the file to count from the step."
        ) from error


def _entry(entries: PlainState, name: str, types: Any, default: Any = None) -> Any:
    """Return an entry of a file after a check of its type.

    Without a default, a missing entry is refused unless its types include None.
    """
    value = entries.get(name, default)
    if not isinstance(value, types):
        raise TypeError(f"{name}={value!r:.60}, but expected is {types}")
    return value
