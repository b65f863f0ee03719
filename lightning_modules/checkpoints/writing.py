"""Write the files of a checkpoint immediately, or in a thread while training continues."""

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

from ..common.device_copies import PINNED_MEMORY_DEVICES
from ..common.local_paths import StrPath
from ..common.nested import map_nested
from ..common.torch_files import save_torch, writing_to
from .adapters import adapter_names, saves_itself
from .disk import sync_path, sync_tree
from .tied_weights import require_tensors, tensor_key
from .weights import save_weights

_log = logging.getLogger(__name__)

Job = Callable[[], object]
Result = TypeVar("Result")


class CheckpointFiles:
    """Writes the files of one checkpoint, immediately or by `write_copies` in a thread.

    Args:
        copies: receives copies of tensors for `write_copies`. None writes every file immediately.
        parts_later: also write copies of each rank's shards in a thread.
        sends_contents: collect the states in `contents_to_send` for another process, because this
            process may not see the folder.
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
        """Contents of the files that another process writes, by file name."""
        self.part_writers: list[Callable[[], Job]] | None = [] if parts_later else None
        """Functions that start to write copies of shards in a thread and return a function that
        waits until all ranks have written theirs. None writes shards immediately.
        """
        self._jobs: list[Job] = []
        self._waits: list[Job] = []

    def write_weights(
        self, model: nn.Module, folder: StrPath, state_dict: Mapping[str, Any] | None = None
    ) -> None:
        """Write the weights of a model, see `save_weights`.

        They are written immediately if the model's `save_pretrained` cannot save copies.

        Raises:
            TypeError: the state dict holds something that is not a tensor; names it.
        """
        if self.copies is None or not _can_save_copies(model):
            save_weights(model, folder, state_dict=state_dict)
            return
        if state_dict is None:
            state_dict = model.state_dict()
        require_tensors(state_dict)
        copied = self.copies.of(state_dict)
        self._jobs.append(partial(save_weights, model, folder, state_dict=copied))

    def write_tensors(self, values: object, path: StrPath) -> None:
        """Write values with tensors to a torch file, see `save_torch`."""
        if self.copies is None:
            save_torch(values, path)
            return
        copied = self.copies.of(values)
        self._jobs.append(partial(save_torch, copied, path))

    def write_bytes(self, content: bytes | str, path: StrPath) -> None:
        """Write bytes or text to a file, or collect them for the process that sees the folder."""
        if isinstance(content, str):
            content = content.encode()
        if self.sends_contents:
            self.contents_to_send[Path(path).name] = content
        elif self.copies is None:
            _write_bytes(content, path)
        else:
            self._jobs.append(partial(_write_bytes, content, path))

    def start_part_writers(self) -> None:
        """Start to write the shards of this rank. Must be called on all ranks."""
        self._waits = []
        for start in self.part_writers or ():
            wait = start()
            self._waits.append(wait)

    def write_copies(self) -> None:
        """Write the copies, and wait for the shards of all ranks."""
        with ExitStack() as stack:
            # Registered first, so that this rank waits for the shards even if a copy cannot be
            # written.
            for wait in self._waits:
                stack.callback(wait)

            # Wait for asynchronous copies from a GPU.
            if self.copies is not None:
                self.copies.wait()
            for job in self._jobs:
                job()


def _write_bytes(content: bytes, path: StrPath) -> None:
    with writing_to(path):
        Path(path).write_bytes(content)


class BackgroundWriter:
    """Writes checkpoints in one thread, in the order in which they were started."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._queued: list[tuple[Future[None], int]] = []
        """Checkpoints that are queued or being written, with the size of each in bytes."""
        self._reusable: list[Snapshot] = []
        """Copies of written checkpoints, whose memory is reused."""

    @property
    def bytes_waiting(self) -> int:
        """Return the total size in bytes of the checkpoints that are not written yet."""
        return sum(size for future, size in self._queued if not future.done())

    def make_room(self, size: int, limit: int) -> None:
        """Wait until there is memory for the copies of a checkpoint.

        Args:
            size: the size of the checkpoint, in bytes.
            limit: maximum bytes of copies at a time. A single checkpoint may exceed it. A negative
                number waits until all checkpoints are written.

        Raises:
            BaseException: the error of an earlier checkpoint, raised once.
        """
        while self._queued:
            oldest, _ = self._queued[0]
            fits = self.bytes_waiting + size <= limit
            if fits and not oldest.done():
                return
            self._queued.pop(0)
            # Wait for the oldest checkpoint, and raise its error.
            oldest.result()

    def copies(self) -> Snapshot:
        """Return a `Snapshot` for the copies of a checkpoint, with reused memory if possible."""
        if not self._reusable:
            return Snapshot()
        copies = self._reusable.pop()
        copies.begin()
        return copies

    def start(self, files: CheckpointFiles, size: int, *, commit: Job, undo: Job) -> None:
        """Write copies in the thread. With shards, this must be called on all ranks.

        Args:
            files: the files with their copies.
            size: the size of the copies, in bytes.
            commit: renames the checkpoint to its final name.
            undo: called if a file cannot be written, or `commit` fails.
        """
        files.start_part_writers()
        future = self.submit(partial(self._write, files, commit, undo))
        self._queued.append((future, size))

    def submit(self, job: Callable[[], Result]) -> Future[Result]:
        """Run a job in the thread after the earlier ones."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-writer")
        return self._pool.submit(job)

    def release(self) -> None:
        """Stop the thread after its jobs, and free the memory of copies.

        The interpreter does not exit before the thread has finished.
        """
        self._reusable.clear()
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
                self._reusable.append(files.copies)


def try_to_flush(folder: Path) -> bool:
    """Flush a folder and its name to the disk.

    Returns:
        Whether that succeeded. Failures are logged as errors.
    """
    try:
        sync_tree(folder)
        sync_path(folder.parent)
    except FileNotFoundError:
        # The folder was deleted by the rotation in the meantime.
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
    """Copies nested tensors to the CPU. Tensors that share memory still share it in the copy.

    GPU tensors are copied to pinned memory asynchronously, on the stream of the training, so that
    kernels queued later cannot change a weight before it is copied. The copies are complete only
    after `wait`. Later snapshots reuse the memory, because allocating it takes longer than copying,
    so copies are only valid until the next `begin`.
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
        """Return nested values with copies of tensors and of other mutable values.

        Args:
            values: dicts, lists and tuples.
        """
        # Keys contain addresses, which are valid only while the values of one call are alive.
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

        # Copy tied weights once. Tensors without memory have no key and are never tied.
        tensor = leaf.detach()
        key = tensor_key(tensor) or len(self._copies)
        if key not in self._copies:
            self._copies[key] = self._copy(tensor)
        return self._copies[key]

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        non_blocking = tensor.device.type in PINNED_MEMORY_DEVICES
        if non_blocking:
            self._devices.add(tensor.device)
        index = self._used
        self._used += 1

        # Reuse the memory of an earlier snapshot if it has the same layout.
        if index < len(self._memory):
            memory = self._memory[index]
            is_same_kind = memory.dtype == tensor.dtype and memory.shape == tensor.shape
            if is_same_kind and memory.stride() == tensor.stride():
                return memory.copy_(tensor, non_blocking=non_blocking)
            del self._memory[index:]

        # With `non_blocking`, torch allocates pinned memory.
        memory = tensor.to("cpu", non_blocking=non_blocking, copy=True)
        self._memory.append(memory)
        return memory


def snapshot(values: object) -> Any:
    """Return nested values with copies of tensors on the CPU, see `Snapshot`."""
    copies = Snapshot()
    copied = copies.of(values)
    copies.wait()
    return copied


def _can_save_copies(model: nn.Module) -> bool:
    """Return whether a model can be saved from a copy of its weights."""
    if not saves_itself(model):
        return True

    # Methods of user code and other libraries may save the live model instead of the copy.
    library = getattr(model.save_pretrained, "__module__", "").partition(".")[0]
    if library != "transformers":
        return False

    # transformers also saves the live model if it has quantized weights or adapters.
    is_quantized = getattr(model, "hf_quantizer", None) is not None
    return not is_quantized and not adapter_names(model)
