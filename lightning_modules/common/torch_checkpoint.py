"""Typed wrappers of `torch.distributed.checkpoint`, whose functions torch does not fully type.

Other modules of this package call these wrappers.
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
        folder: the folder, created if needed.
        options: arguments of `FileSystemWriter`.
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
    """Write nested dicts of tensors and plain values. Each rank writes its shards.

    Args:
        state: nested dicts of the values.
        writer: writes the files to its folder.
    """
    with warnings.catch_warnings():
        _ignore_missing_group()
        state_dict_saver.save(state, storage_writer=writer)


def start_writing_folder(
    state: dict[str, Any], writer: FileSystemWriter, group: dist.ProcessGroup
) -> Callable[[], object]:
    """Write the shards of all ranks in a thread of torch. Must be called on all ranks.

    Args:
        state: the values, which must not change until they are written.
        writer: writes the files, into its folder.
        group: process group of all ranks, used only by this thread.

    Returns:
        A function that waits until all ranks have written their shards, and raises their errors.
    """
    future: Any = state_dict_saver.async_save(state, storage_writer=writer, process_group=group)
    return future.result


def read_folder(
    state: dict[str, Any], reader: FolderReader, planner: LoadPlanner, *, all_ranks: bool
) -> None:
    """Fill nested dicts with the values of the same names in a folder.

    Args:
        state: nested dicts. Tensors are filled in place, other values are replaced.
        reader: reads the files in its folder.
        planner: as for torch's `load`.
        all_ranks: whether all ranks call this. Otherwise this process reads independently.
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
    """Copy nested dicts of tensors, including `ShardedTensor`, to the CPU."""
    return BlockingAsyncStager().stage(state)


def _ignore_missing_group() -> None:
    """Ignore torch's warning about reading or writing without a process group."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
