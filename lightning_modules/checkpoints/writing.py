"""Write the files of a checkpoint: at once, or copies of them in a thread while the training
continues.
"""

from __future__ import annotations

import copy
import logging
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
from .disk import sync_path, sync_tree
from .tied_weights import identity, require_tensors
from .weights import save_weights

_log = logging.getLogger(__name__)

Job = Callable[[], object]


class CheckpointFiles:
    """Files of one checkpoint, written at once, or by `run` in a thread.

    Args:
        copies: receives copies of tensors, to be written by `run`; None writes every file at once.
        parts: receives copies of the parts that each process writes; None writes them at once.
        sends: this process may not see the folder, and leaves its states to another one, in
            `contents`.
    """

    def __init__(
        self, copies: Snapshot | None = None, parts: Snapshot | None = None, *, sends: bool = False
    ) -> None:
        self.copies = copies
        self.parts = parts
        self.sends = sends
        self.contents: dict[str, bytes] = {}
        """Contents of the files that another process writes, by name."""
        self.begins: list[Callable[[], Job]] = []
        """Each begins to write parts in a thread, and returns what waits until all processes
        have written theirs.
        """
        self._jobs: list[Job] = []
        self._waits: list[Job] = []

    def weights(
        self, model: nn.Module, folder: StrPath, state_dict: Mapping[str, Any] | None = None
    ) -> None:
        """As `save_weights`; at once for a model whose `save_pretrained` accepts no copy of its
        weights.

        Raises:
            TypeError: the state dict holds something that is not a tensor; names it.
        """
        if self.copies is None or not _takes_copies(model):
            save_weights(model, folder, state_dict=state_dict)
            return
        if state_dict is None:
            state_dict = model.state_dict()
        require_tensors(state_dict)
        self._jobs.append(
            partial(save_weights, model, folder, state_dict=self.copies.of(state_dict))
        )

    def tensors(self, values: Any, path: StrPath) -> None:
        """As `save_torch`."""
        if self.copies is None:
            save_torch(values, path)
        else:
            self._jobs.append(partial(save_torch, self.copies.of(values), path))

    def raw(self, content: bytes | str, path: StrPath) -> None:
        """Write bytes or text to a file, or leave them to the process that sees the folder."""
        if isinstance(content, str):
            content = content.encode()
        if self.sends:
            self.contents[Path(path).name] = content
        elif self.copies is None:
            _write_bytes(content, path)
        else:
            self._jobs.append(partial(_write_bytes, content, path))

    def begin(self) -> None:
        """Begin to write the parts; collective."""
        self._waits = [begin() for begin in self.begins]

    def run(self) -> None:
        """Write the copies, and wait for the parts of all processes."""
        with ExitStack() as stack:
            for wait in self._waits:
                stack.callback(wait)
            if self.copies is not None:
                self.copies.wait()
            for job in self._jobs:
                job()


def _write_bytes(content: bytes, path: StrPath) -> None:
    with writing_to(path):
        Path(path).write_bytes(content)


class BackgroundWriter:
    """One thread that writes checkpoints, in the order in which they were begun."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._writing: list[tuple[Future[None], int]] = []  # and the bytes of each
        self._free: list[Snapshot] = []  # memory of checkpoints that are written
        self.parts = Snapshot()  # copies of the parts of one checkpoint at a time

    @property
    def bytes_waiting(self) -> int:
        """Return the size of the checkpoints that are not written yet."""
        return sum(size for future, size in self._writing if not future.done())

    def make_room(self, size: int, limit: int) -> None:
        """Wait until there is room for the copies of a checkpoint.

        Args:
            size: of the checkpoint, in bytes.
            limit: bytes of copies that may be held at a time; one checkpoint is copied whatever its
                size. With a negative number all checkpoints are written then.

        Raises:
            BaseException: the error of an earlier checkpoint; once.
        """
        while self._writing and (self._writing[0][0].done() or self.bytes_waiting + size > limit):
            future, _ = self._writing.pop(0)
            future.result()

    def begin_parts(self) -> Snapshot:
        """Return the memory for the copies of the parts, of which those before are not needed
        any more.
        """
        self.parts.begin()
        return self.parts

    def copies(self) -> Snapshot:
        """Return memory for the copies of a checkpoint, that of an earlier one if possible."""
        return self._free.pop() if self._free else Snapshot()

    def start(self, files: CheckpointFiles, size: int, *, commit: Job, undo: Job) -> None:
        """Write copies in the thread; collective if there are parts.

        Args:
            files: holds the copies.
            size: of the copies, in bytes.
            commit: gives the checkpoint its name.
            undo: called when one of the files, or `commit`, fails.
        """
        files.begin()
        self._writing.append((self.submit(partial(self._write, files, commit, undo)), size))

    def submit(self, job: Job) -> Future[Any]:
        """Run a job in the thread after those before it."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-writer")
        return self._pool.submit(job)

    def release(self) -> None:
        """Let the thread end after its jobs, and free the memory; the exit of the program waits
        for the thread.
        """
        if self._pool is not None:
            self._pool.submit(self._free.clear)
            self._pool.shutdown(wait=False)
            self._pool = None
        self.parts = Snapshot()

    def _write(self, files: CheckpointFiles, commit: Job, undo: Job) -> None:
        try:
            files.run()
            commit()
        except BaseException:
            undo()
            raise
        finally:
            if files.copies is not None:
                files.copies.begin()
                self._free.append(files.copies)


def try_to_flush(folder: Path) -> bool:
    """Flush a folder and its name to the disk; return False, and log an error, if the disk
    refuses.
    """
    try:
        sync_tree(folder)
        sync_path(folder.parent)
    except FileNotFoundError:  # removed meanwhile
        return False
    except OSError as error:
        _log.error(
            "%s is complete, but may not outlive a power failure: the disk refused it (%s).",
            folder,
            error,
        )
        return False
    return True


_UNCHANGING = (bool, int, float, str, bytes, type(None))
"""Types of values that need no copy."""


class Snapshot:
    """Copies of tensors in main memory, in the same structure; shared memory stays shared.

    Those of a GPU are complete only after `wait`: the device copies them to page-locked memory, on
    the stream of the training, so that kernels queued later change no weight before it is copied,
    and the host does not wait. Repeated snapshots reuse the memory of the last one, since
    allocating takes longer than copying. So the copies are valid only until the next `begin`.
    """

    def __init__(self) -> None:
        self._memory: list[torch.Tensor] = []
        self._used = 0
        self._copies: dict[Any, torch.Tensor] = {}
        self._devices: set[torch.device] = set()
        self._events: list[Any] = []

    def begin(self) -> None:
        """Invalidate the copies made so far."""
        self._used = 0
        self._events.clear()

    def of(self, values: Any) -> Any:
        """Return nested dicts, lists and tuples with copies of their tensors and of other values
        that may change.
        """
        # By address, so only while the values of one call are alive.
        self._copies = {}
        self._devices = set()
        copied = map_nested(self._copy_leaf, values)
        for device in self._devices:
            event = torch.get_device_module(device).Event()
            event.record(torch.get_device_module(device).current_stream(device))
            self._events.append(event)
        return copied

    def wait(self) -> None:
        """Wait for the copies of GPUs."""
        for event in self._events:
            event.synchronize()

    def _copy_leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            tensor = leaf.detach()
            key = identity(tensor) or len(self._copies)
            if key not in self._copies:
                self._copies[key] = self._copy(tensor)
            return self._copies[key]
        if type(leaf) in _UNCHANGING:
            return leaf
        return copy.deepcopy(leaf)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        place = self._used
        self._used += 1

        # The memory of an earlier snapshot, if it has the same form.
        if place < len(self._memory):
            held = self._memory[place]
            if (held.shape, held.dtype, held.stride()) == (
                tensor.shape,
                tensor.dtype,
                tensor.stride(),
            ):
                self._copy_into(held, tensor)
                return held
            del self._memory[place:]

        # A subclass of tensors may hold several, and is copied by its own method.
        if is_copied_by_device(tensor):
            memory = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._copy_into(memory, tensor)
        else:
            memory = tensor.to("cpu", copy=True)
        self._memory.append(memory)
        return memory

    def _copy_into(self, memory: torch.Tensor, tensor: torch.Tensor) -> None:
        if is_copied_by_device(tensor):
            self._devices.add(tensor.device)
            memory.copy_(tensor, non_blocking=True)
        else:
            memory.copy_(tensor)


def is_copied_by_device(tensor: torch.Tensor) -> bool:
    """Return whether a device can copy a tensor to page-locked memory while the host continues."""
    return tensor.device.type in WITH_PAGE_LOCKS and type(tensor) is torch.Tensor


def snapshot(values: Any) -> Any:
    """Return nested dicts, lists and tuples with copies of their tensors in new memory; see
    `Snapshot`.
    """
    copies = Snapshot()
    copied = copies.of(values)
    copies.wait()
    return copied


def _takes_copies(model: Any) -> bool:
    """Return whether a model can be saved from a copy of its weights, without reading the live
    model.
    """
    if not saves_itself(model):
        return True
    # Methods of scripts and of other libraries save what they find in the live model.
    library = getattr(model.save_pretrained, "__module__", "").partition(".")[0]
    if library != "transformers":
        return False
    # So does that of transformers for quantized weights and for adapters.
    return getattr(model, "hf_quantizer", None) is None and not adapters_of(model)
