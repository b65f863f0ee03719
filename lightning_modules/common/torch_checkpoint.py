"""Functions of `torch.distributed.checkpoint` with their whole types, which torch leaves open.

The other modules of this package call these, so that type checkers see what goes in and comes out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.planner import LoadPlanner
from torch.distributed.checkpoint.staging import BlockingAsyncStager


class FolderWriter(FileSystemWriter):
    """As torch's `FileSystemWriter`, with the folder as an attribute.

    Args:
        folder: is created if needed.
        options: those of `FileSystemWriter`.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self.folder = folder


class FolderReader(FileSystemReader):
    """As torch's `FileSystemReader`, with the folder as an attribute."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder


def write_folder(state: dict[str, Any], writer: FileSystemWriter) -> None:
    """Write nested dicts of tensors and plain values to a folder, each process its part.

    Args:
        state: nested dicts of the values.
        writer: writes the files, into its folder.
    """
    with warnings.catch_warnings():
        _ignore_missing_group()
        state_dict_saver.save(state, storage_writer=writer)


def start_writing_folder(
    state: dict[str, Any], writer: FileSystemWriter, group: dist.ProcessGroup
) -> Callable[[], object]:
    """Let a thread of torch write the parts of all processes. All processes must call this.

    Args:
        state: stays unchanged until it is written.
        writer: writes the files, into its folder.
        group: the group of all processes, used by this thread alone.

    Returns:
        a function that waits until all processes have written theirs, and raises their errors.
    """
    future: Any = state_dict_saver.async_save(state, storage_writer=writer, process_group=group)
    return future.result


def read_folder(
    state: dict[str, Any], reader: FolderReader, planner: LoadPlanner, *, all_ranks: bool
) -> None:
    """Fill nested dicts with the values that a folder holds under their names.

    Args:
        state: tensors are filled in place, other values are replaced.
        reader: reads the files of its folder.
        planner: as for torch's `load`.
        all_ranks: all processes call this; otherwise this one reads alone.
    """
    with warnings.catch_warnings():
        _ignore_missing_group()
        state_dict_loader.load(
            state,
            checkpoint_id=reader.folder,
            storage_reader=reader,
            planner=planner,
            no_dist=not all_ranks,
        )


def copy_to_host(state: dict[str, Any]) -> dict[str, object]:
    """Return nested dicts with copies of tensors in host memory, also of `ShardedTensor`."""
    return BlockingAsyncStager().stage(state)


def _ignore_missing_group() -> None:
    """Ignore torch's warning that a process without a group writes or reads alone."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
