"""Write the files of a checkpoint at once, or in a thread while the training continues."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from ..common.device_copies import WITH_PAGE_LOCKS
from ..common.local_paths import StrPath
from ..common.nested import map_nested
from ..common.torch_files import save_torch, writing_to
from .adapters import adapters_of, saves_itself
from .disk import sync_path, sync_tree
from .tied_weights import require_tensors, tensor_key
from .weights import save_weights

_log = logging.getLogger(__name__)

Job = Callable[[], object]
Result = TypeVar("Result")


class CheckpointFiles:
    """Files of one checkpoint, written at once, or by `write_copies` in a thread.

    Args:
        copies: receives copies of tensors, for `write_copies`; None writes every file at once.
        parts_later: also let a thread write copies of each process's shards.
        sends_contents: this process may not see the folder; it collects its states in
            `contents_to_send` for another process, which writes them.
    """

    def __init__(
        self,
        copies: Snapshot | None = None,
        *,
        parts_later: bool = False,
        sends_contents: bool = False,
    ) -> None:
        self.copies = copies
        self.sends_contents = sends_contents
        self.contents_to_send: dict[str, bytes] = {}
        """Contents of the files that another process writes, by name."""
        self.part_writers: list[Callable[[], Job]] | None = [] if parts_later else None
        """Functions that each start to write copies of shards in a thread, and return a function
        that waits until all processes have written theirs. None writes shards at once.
        """
        self._jobs: list[Job] = []
        self._waits: list[Job] = []

    def write_weights(
        self, model: nn.Module, folder: StrPath, state_dict: Mapping[str, Any] | None = None
    ) -> None:
        """Write the weights of a model, see `save_weights`.

        They are written at once if the `save_pretrained` of the model does not accept copies.

        Raises:
            TypeError: the state dict holds something that is not a tensor; names it.
        """
        if self.copies is None or not _takes_copies(model):
            save_weights(model, folder, state_dict=state_dict)
            return
        if state_dict is None:
            state_dict = model.state_dict()
        require_tensors(state_dict)
        copied = self.copies.of(state_dict)
        self._jobs.append(partial(save_weights, model, folder, state_dict=copied))

    def write_tensors(self, values: object, path: StrPath) -> None:
        """Write a file of torch, see `save_torch`."""
        if self.copies is None:
            save_torch(values, path)
            return
        copied = self.copies.of(values)
        self._jobs.append(partial(save_torch, copied, path))

    def write_bytes(self, content: bytes | str, path: StrPath) -> None:
        """Write bytes or text to a file, or leave them to the process that sees the folder."""
        if isinstance(content, str):
            content = content.encode()
        if self.sends_contents:
            self.contents_to_send[Path(path).name] = content
        elif self.copies is None:
            _write_bytes(content, path)
        else:
            self._jobs.append(partial(_write_bytes, content, path))

    def start_part_writers(self) -> None:
        """Start to write the shards of this process. All processes must call this."""
        self._waits = []
        for start in self.part_writers or ():
            wait = start()
            self._waits.append(wait)

    def write_copies(self) -> None:
        """Write the copies, and wait for the shards of all processes."""
        with ExitStack() as stack:
            # Registered first, so that the shards are waited for even if a copy cannot be written.
            for wait in self._waits:
                stack.callback(wait)

            # Copies from a GPU are complete only now.
            if self.copies is not None:
                self.copies.wait()
            for job in self._jobs:
                job()


def _write_bytes(content: bytes, path: StrPath) -> None:
    with writing_to(path):
        Path(path).write_bytes(content)


class BackgroundWriter:
    """One thread that writes checkpoints, in the order in which they were started."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._writing: list[tuple[Future[None], int]] = []
        """Checkpoints that are being written or waiting, and the bytes of each."""
        self._free: list[Snapshot] = []
        """Memory of written checkpoints, which the next copies reuse."""

    @property
    def bytes_waiting(self) -> int:
        """Return the size of the checkpoints that are not written yet."""
        return sum(size for future, size in self._writing if not future.done())

    def make_room(self, size: int, limit: int) -> None:
        """Wait until there is room for the copies of a checkpoint.

        Args:
            size: the size of the checkpoint, in bytes.
            limit: bytes of copies that may be held at a time; a single checkpoint may exceed it. A
                negative number waits until all checkpoints are written.

        Raises:
            BaseException: the error of an earlier checkpoint; once.
        """
        while self._writing:
            oldest, _ = self._writing[0]
            fits = self.bytes_waiting + size <= limit
            if fits and not oldest.done():
                return
            self._writing.pop(0)
            # Waits for the oldest checkpoint, and raises its error.
            oldest.result()

    def copies(self) -> Snapshot:
        """Return memory for the copies of a checkpoint, reused from an earlier one if possible."""
        if not self._free:
            return Snapshot()
        copies = self._free.pop()
        copies.begin()
        return copies

    def start(self, files: CheckpointFiles, size: int, *, commit: Job, undo: Job) -> None:
        """Write copies in the thread. With parts, all processes must call this.

        Args:
            files: holds the copies.
            size: the size of the copies, in bytes.
            commit: renames the checkpoint to its final name.
            undo: called if a file cannot be written, or `commit` fails.
        """
        files.start_part_writers()
        future = self.submit(partial(self._write, files, commit, undo))
        self._writing.append((future, size))

    def submit(self, job: Callable[[], Result]) -> Future[Result]:
        """Run a job in the thread after those before it."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-writer")
        return self._pool.submit(job)

    def release(self) -> None:
        """Let the thread end after its jobs, and free the memory of copies.

        The program does not exit before the thread has ended.
        """
        self._free.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None

    def _write(self, files: CheckpointFiles, commit: Job, undo: Job) -> None:
        try:
            files.write_copies()
            commit()
        except BaseException:
            undo()
            raise
        finally:
            # Keep the memory for the next checkpoint.
            if files.copies is not None:
                self._free.append(files.copies)


def try_to_flush(folder: Path) -> bool:
    """Flush a folder and its name to the disk.

    Returns:
        whether that succeeded. A disk that refuses is logged as an error.
    """
    try:
        sync_tree(folder)
        sync_path(folder.parent)
    except FileNotFoundError:
        # The rotation has deleted it in the meantime.
        return False
    except OSError as error:
        _log.error(
            "%s is complete, but could not be flushed to the disk (%s). A power failure may "
            "damage it; check the disk.",
            folder,
            error,
        )
        return False
    return True


_IMMUTABLE_TYPES = (bool, int, float, str, bytes, type(None))
"""Types of values that need no copy."""


class Snapshot:
    """CPU copies of tensors in the same structure; tensors that share memory still share it.

    Copies of GPU tensors are complete only after `wait`. They are copied to pinned memory
    asynchronously, on the stream of the training, so that kernels queued later cannot change a
    weight before it is copied. Later snapshots reuse the memory, because allocating it takes longer
    than copying, so the copies are only valid until the next `begin`.
    """

    def __init__(self) -> None:
        self._memory: list[torch.Tensor] = []
        self._used = 0
        self._copies: dict[Hashable, torch.Tensor] = {}
        self._devices: set[torch.device] = set()

    def begin(self) -> None:
        """Invalidate the copies made so far."""
        self._used = 0
        self._devices.clear()

    def of(self, values: object) -> Any:
        """Return nested values with copies of their tensors and of other values that may change.

        Args:
            values: dicts, lists and tuples.
        """
        # Keyed by address, so they are valid only while the values of one call are alive.
        self._copies = {}
        return map_nested(self._copy_leaf, values)

    def wait(self) -> None:
        """Wait until the copies from GPUs are complete."""
        for device in self._devices:
            torch.get_device_module(device).synchronize(device)

    def _copy_leaf(self, leaf: object) -> object:
        if type(leaf) in _IMMUTABLE_TYPES:
            return leaf
        if not isinstance(leaf, torch.Tensor):
            return copy.deepcopy(leaf)

        # Tied weights are copied once. A tensor without memory is never the same as another one.
        tensor = leaf.detach()
        key = tensor_key(tensor) or len(self._copies)
        if key not in self._copies:
            self._copies[key] = self._copy(tensor)
        return self._copies[key]

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        non_blocking = tensor.device.type in WITH_PAGE_LOCKS
        if non_blocking:
            self._devices.add(tensor.device)
        index = self._used
        self._used += 1

        # Reuse the memory of an earlier snapshot, if it has the same layout.
        if index < len(self._memory):
            memory = self._memory[index]
            is_same_kind = memory.dtype == tensor.dtype and memory.shape == tensor.shape
            if is_same_kind and memory.stride() == tensor.stride():
                return memory.copy_(tensor, non_blocking=non_blocking)
            del self._memory[index:]

        # With `non_blocking` torch allocates page-locked memory.
        memory = tensor.to("cpu", non_blocking=non_blocking, copy=True)
        self._memory.append(memory)
        return memory


def snapshot(values: object) -> Any:
    """Return nested values with copies of their tensors, see `Snapshot`."""
    copies = Snapshot()
    copied = copies.of(values)
    copies.wait()
    return copied


def _takes_copies(model: nn.Module) -> bool:
    """Return whether a model can be saved from a copy of its weights."""
    if not saves_itself(model):
        return True

    # Methods of scripts and of other libraries may save the weights of the live model.
    library = getattr(model.save_pretrained, "__module__", "").partition(".")[0]
    if library != "transformers":
        return False

    # For quantized weights and adapters the method of transformers saves the live model, too.
    is_quantized = getattr(model, "hf_quantizer", None) is not None
    return not is_quantized and not adapters_of(model)
