"""Write the files of a checkpoint: at once, or copies of them in a thread while the training goes on."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..common.device_copies import WITH_PAGE_LOCKS
from ..common.local_paths import StrPath
from ..common.nested import map_nested
from ..common.torch_files import save_torch, writing_to
from .adapters import adapters_of, saves_itself
from .disk import is_disk_full, sync_path, sync_tree
from .tied_weights import identity, require_tensors
from .weights import save_weights

_log = logging.getLogger(__name__)

Job = Callable[[], None]

_BETWEEN_FLUSHES = 1.0
"""Seconds after a flush in which checkpoints are not flushed while the training continues."""


class CheckpointFiles:
    """Files of one checkpoint.

    Args:
        copies: receives copies of tensors, to be written by `run` in a thread; None writes every file at once.
        parts: receives copies of the parts that each process writes; None writes them at once.
        sends: this process may not see the folder, and leaves its states to another one, in `contents`.
    """

    def __init__(self, copies: Snapshot | None = None, parts: Snapshot | None = None, *, sends: bool = False) -> None:
        self.copies = copies
        self.parts = parts
        self.sends = sends
        self.contents: dict[str, bytes] = {}
        """Contents of the files that another process writes, by name."""
        self.begins: list[Callable[[], Job]] = []
        """Each begins to write parts in a thread, and returns what waits until all processes have written theirs."""
        self._jobs: list[Job] = []
        self._begun: list[Job] = []

    def weights(self, model: nn.Module, folder: StrPath, state_dict: Mapping[str, Any] | None = None) -> None:
        """As `save_weights`; at once for a model whose `save_pretrained` accepts no copy of its weights.

        Raises:
            TypeError: the state dict holds something that is not a tensor; names it.
        """
        if self.copies is None or not _takes_copies(model):
            save_weights(model, folder, state_dict=state_dict)
            return
        state_dict = model.state_dict() if state_dict is None else state_dict
        require_tensors(state_dict)
        copied = self.copies.of(state_dict)
        self._jobs.append(partial(save_weights, model, folder, state_dict=copied))

    def tensors(self, values: Any, path: StrPath) -> None:
        """As `save_torch`."""
        written = map_nested(_without_rest, values) if self.copies is None else self.copies.of(values)
        self._write(partial(save_torch, written, path))

    def raw(self, content: bytes, path: StrPath) -> None:
        """Write bytes to a file, or leave them to the process that sees the folder."""
        if self.sends:
            self.contents[Path(path).name] = content
            return
        self._write(partial(_write_bytes, content, path))

    def begin(self) -> None:
        """Begin to write the parts; collective."""
        self._begun = [begin() for begin in self.begins]

    def run(self) -> None:
        """Write the copies, and wait for the parts of all processes."""
        with ExitStack() as begun:
            for wait in self._begun:
                begun.callback(wait)
            if self.copies is not None:
                self.copies.wait()
            for job in self._jobs:
                job()

    def _write(self, job: Job) -> None:
        if self.copies is None:
            job()
        else:
            self._jobs.append(job)


def _without_rest(leaf: Any) -> Any:
    """Return a tensor that is a part of a larger memory as a copy, since `torch.save` writes all of the memory."""
    is_strided = type(leaf) is torch.Tensor and leaf.layout is torch.strided and not leaf.is_meta
    if is_strided and leaf.untyped_storage().nbytes() != leaf.nbytes:
        return leaf.clone()
    return leaf


def _write_bytes(content: bytes, path: StrPath) -> None:
    with writing_to(path):
        Path(path).write_bytes(content)


class BackgroundWriter:
    """Write checkpoints in a thread, in order, and flush each; of those in quick succession one a second, and the last.

    A checkpoint has its final name when all of its files are written, and outlives a power failure when it is flushed.

    Args:
        flush: flushes the newest checkpoint that has its name.
    """

    def __init__(self, flush: Job) -> None:
        self._flush = flush
        self._flushed_at = time.monotonic()
        self._pool: ThreadPoolExecutor | None = None
        self._writing: list[tuple[Future[None], int]] = []
        self._last: Future[None] | None = None
        self._free: list[Snapshot] = []
        self.parts = Snapshot()
        """Copies of the parts of one checkpoint at a time."""

    @property
    def bytes_waiting(self) -> int:
        """Return the size of the checkpoints that are not written yet."""
        return sum(size for future, size in self._writing if not future.done())

    def make_room(self, size: int, limit: int) -> None:
        """Wait until there is room for the copies of a checkpoint.

        Args:
            size: of the checkpoint, in bytes.
            limit: bytes of copies that may be held at a time; one checkpoint is copied whatever its size.

        Raises:
            BaseException: the error of an earlier checkpoint.
        """
        while self._writing and (self._writing[0][0].done() or self.bytes_waiting + size > limit):
            self._writing.pop(0)[0].result()

    def copies(self) -> Snapshot:
        """Return memory for the copies of a checkpoint, that of an earlier one if possible."""
        return self._free.pop() if self._free else Snapshot()

    def start(self, files: CheckpointFiles, size: int, *, commit: Job, undo: Job) -> None:
        """Write copies in the thread; collective if there are parts.

        Args:
            files: holds the copies.
            size: theirs, in bytes.
            commit: gives the checkpoint its name.
            undo: called when one of the files, or `commit`, fails.
        """
        files.begin()
        self._writing.append((self._submit(self._write, files, commit, undo), size))
        self.flush()

    def flush(self) -> None:
        """Let the thread flush the newest checkpoint if it is due."""
        self._last = self._submit(self._flush_if_due)

    def wait(self) -> None:
        """Wait until all checkpoints are written.

        Raises:
            BaseException: the error of the thread; once.
        """
        self.make_room(0, -1)

    def wait_until_flushed(self) -> None:
        """Wait until the newest written checkpoint is on the disk."""
        if self._pool is not None:
            self._last = self._submit(self._flush_now)
        if self._last is not None:
            self._last.result()

    def release(self) -> None:
        """Let the thread end when the newest checkpoint is on the disk, and free the memory; program exit waits."""
        if self._pool is not None:
            self._last = self._submit(self._flush_now)
            self._submit(self._free.clear)
            self.parts = Snapshot()
            self._pool.shutdown(wait=False)
            self._pool = None

    def _submit(self, job: Callable[..., Any], *args: Any) -> Future[Any]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-writer")
        return self._pool.submit(job, *args)

    def _write(self, files: CheckpointFiles, commit: Job, undo: Job) -> None:
        try:
            files.run()
            commit()
        except BaseException:
            try:
                undo()
            except OSError as error:
                _log.warning("What was begun of a checkpoint could not be removed: %s", error)
            raise
        finally:
            if files.copies is not None:
                files.copies.begin()
                self._free.append(files.copies)

    def _flush_if_due(self) -> None:
        if time.monotonic() - self._flushed_at > _BETWEEN_FLUSHES:
            self._flush_now()

    def _flush_now(self) -> None:
        self._flushed_at = time.monotonic()
        self._flush()


def try_to_flush(folder: Path) -> bool:
    """Flush a folder and its name; return False, and log an error, if the disk refuses."""
    try:
        sync_tree(folder)
        sync_path(folder.parent)
    except FileNotFoundError:  # removed meanwhile
        return False
    except OSError as error:
        _log.error("%s is complete, but may not outlive a power failure: the disk refused it (%s).", folder, error)
        return False
    return True


class DeviceCopies:
    """Copies tensors of one device to page-locked memory, on a stream of its own.

    The host does not wait for the device. Kernels that the training queues after `end` wait for the copies, so that no
    step changes a weight before it is copied.

    Args:
        device: of the tensors.
    """

    def __init__(self, device: torch.device) -> None:
        self._module: Any = torch.get_device_module(device)
        self._stream = self._module.Stream(device)
        self._device = device
        self._done: Any = None

    def copy(self, tensor: torch.Tensor, memory: torch.Tensor) -> None:
        """Queue a copy to `memory`, after all that the training has queued so far."""
        self._stream.wait_stream(self._module.current_stream(self._device))
        with self._module.stream(self._stream):
            memory.copy_(tensor, non_blocking=True)
        tensor.record_stream(self._stream)

    def end(self) -> None:
        """Let the training's later kernels wait for the copies."""
        self._done = self._stream.record_event()
        self._module.current_stream(self._device).wait_event(self._done)

    def wait(self) -> None:
        """Wait until the copies are there; called by the thread that writes them."""
        if self._done is not None:
            self._done.synchronize()


_UNCHANGING = (bool, int, float, str, bytes, type(None))
"""Types of values that need no copy."""


class Snapshot:
    """Copies of tensors in main memory, in the same structure; shared memory stays shared.

    Those of a GPU are only there after `wait`: the device copies them while the training goes on. Repeated snapshots
    reuse the memory of the last one, since allocating takes longer than copying. So the copies are valid only until the
    next `begin`.
    """

    def __init__(self) -> None:
        self._memory: list[torch.Tensor] = []
        self._used = 0
        self._copies: dict[Any, torch.Tensor] = {}
        self._devices: dict[torch.device, DeviceCopies] = {}

    def begin(self) -> None:
        """Invalidate the copies made so far."""
        self._used = 0

    def of(self, values: Any) -> Any:
        """Return nested dicts, lists and tuples with copies of their tensors and of other values that may change."""
        self._copies = {}  # by address: good only while the values of one call are there
        copied = map_nested(self._copy_leaf, values)
        for device in self._devices.values():
            device.end()
        return copied

    def wait(self) -> None:
        """Wait for the copies of GPUs."""
        for device in self._devices.values():
            device.wait()

    def _copy_leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self._copy(leaf.detach())
        return leaf if type(leaf) in _UNCHANGING else copy.deepcopy(leaf)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        key = identity(tensor) or len(self._copies)
        if key not in self._copies:
            self._copies[key] = self._into_memory(tensor)
        return self._copies[key]

    def _into_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        index, self._used = self._used, self._used + 1
        if index < len(self._memory):
            held = self._memory[index]
            if (held.shape, held.dtype, held.stride()) != (tensor.shape, tensor.dtype, tensor.stride()):
                del self._memory[index:]
        is_new = index == len(self._memory)
        if is_copied_by_stream(tensor):
            if is_new:
                self._memory.append(torch.empty_like(tensor, device="cpu", pin_memory=True))
            if tensor.device not in self._devices:
                self._devices[tensor.device] = DeviceCopies(tensor.device)
            self._devices[tensor.device].copy(tensor, self._memory[index])
        elif is_new:
            self._memory.append(tensor.to("cpu", copy=True))
        else:
            self._memory[index].copy_(tensor)
        return self._memory[index]


def is_copied_by_stream(tensor: torch.Tensor) -> bool:
    """Return whether a tensor can be copied by a stream of its own; subclasses may hold several tensors."""
    return tensor.device.type in WITH_PAGE_LOCKS and type(tensor) is torch.Tensor


def snapshot(values: Any) -> Any:
    """Return nested dicts, lists and tuples with copies of their tensors in new memory; see `Snapshot`."""
    copies = Snapshot()
    copied = copies.of(values)
    copies.wait()
    return copied


def _takes_copies(model: Any) -> bool:
    """Return whether a model can be saved from a copy of its weights, without reading the live model."""
    if not saves_itself(model):
        return True
    # Methods of scripts and of other libraries save what they find in the live model.
    library = getattr(model.save_pretrained, "__module__", "").partition(".")[0]
    if library != "transformers":
        return False
    # So does that of transformers for quantized weights and for adapters.
    return getattr(model, "hf_quantizer", None) is None and not adapters_of(model)


def warn_if_disk_full(error: BaseException, folder: StrPath) -> None:
    """Warn about a full disk instead of ending the training.

    Raises:
        BaseException: the error itself, if it has another cause.
    """
    if not is_disk_full(error, folder):
        raise error
    _log.warning(
        "No checkpoint was written to %s, for the disk is full (%s). Training goes on, and the older checkpoints are "
        "untouched. Free some space, or set save_total_limit or save_only_model.",
        Path(folder),
        error,
    )
