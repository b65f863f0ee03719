"""Writers of the large files of a checkpoint: the caller at once, or a thread during training.

Both have three methods: `weights`, `tensors`, and `finish`, which renames the checkpoint.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.local_paths import StrPath
from .disk import is_disk_full, sync_path, sync_tree
from .large_files import WrittenFiles, write_torch
from .weights import save_weights

if TYPE_CHECKING:
    import torch
    from torch import nn

_log = logging.getLogger(__name__)

Job = Callable[[], None]


class WriteNow:
    """Write every file before the call returns.

    Args:
        flushed: as for `WrittenFiles`.
    """

    def __init__(self, *, flushed: bool = True) -> None:
        self.written = WrittenFiles(flushed=flushed)

    def weights(self, model: nn.Module, folder: StrPath, state_dict: Mapping[str, Any] | None = None) -> None:
        """As `save_weights`."""
        save_weights(model, folder, state_dict=state_dict, written=self.written)

    def tensors(self, values: Any, path: StrPath) -> None:
        """As `write_torch`."""
        write_torch(values, path, self.written)

    def finish(self, commit: Job, undo: Job) -> None:
        """Call `commit`; `undo` is for `WriteLater`."""
        commit()


class WriteLater:
    """Copy to main memory at once, and let a `BackgroundWriter` write the copies.

    Args:
        background: an idle writer.
    """

    def __init__(self, background: BackgroundWriter) -> None:
        self.background = background
        self.background.snapshot.begin()
        self.written = WrittenFiles()
        self.jobs: list[Job] = []

    def weights(self, model: nn.Module, folder: StrPath, state_dict: Mapping[str, Any] | None = None) -> None:
        """As `WriteNow.weights`; at once for a model whose `save_pretrained` accepts no copy of its weights."""
        if not _takes_copies(model):
            save_weights(model, folder, state_dict=state_dict, written=self.written)
            return
        copied = self.background.snapshot.of(model.state_dict() if state_dict is None else state_dict)
        self.jobs.append(partial(save_weights, model, folder, state_dict=copied, written=self.written))

    def tensors(self, values: Any, path: StrPath) -> None:
        """As `WriteNow.tensors`."""
        self.jobs.append(partial(write_torch, self.background.snapshot.of(values), path, self.written))

    def finish(self, commit: Job, undo: Job) -> None:
        """Start the thread, which then calls `commit`, or `undo` after an error."""
        self.background.start([*self.jobs, commit], undo)


class BackgroundWriter:
    """Write one checkpoint at a time in a thread; its error is raised by the next `wait`."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self._flushing: threading.Thread | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether a checkpoint is being written at this moment."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, jobs: list[Job], undo: Job) -> None:
        """Run the jobs in order, in a thread.

        Args:
            jobs: the last one renames the checkpoint.
            undo: called when one of them fails.

        Raises:
            BaseException: the error of an earlier `start`.
        """
        self.wait()
        # Not a daemon: the checkpoint of a script that ends, or fails, meanwhile is still written.
        self._thread = threading.Thread(target=self._work, args=(jobs, undo), name="checkpoint-writer", daemon=False)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the thread.

        Raises:
            BaseException: the error of the thread; once.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def flush(self, folder: Path) -> None:
        """Flush a complete checkpoint to the disk in a thread, then free the copies; program exit waits for it."""
        self.wait_until_flushed()
        copies, self.snapshot = self.snapshot, Snapshot()
        self._flushing = threading.Thread(target=_flush, args=(folder, copies), name="checkpoint-flush", daemon=False)
        self._flushing.start()

    def wait_until_flushed(self) -> None:
        """Wait until the checkpoint of the last `flush` is on the disk."""
        thread, self._flushing = self._flushing, None
        if thread is not None:
            thread.join()

    def _work(self, jobs: list[Job], undo: Job) -> None:
        try:
            for job in jobs:
                job()
        except BaseException as error:  # raised by `wait` in the training thread
            self._error = error
            try:
                undo()
            except OSError as second:
                _log.warning("What was begun of a checkpoint could not be removed: %s", second)


def _flush(folder: Path, copies: Snapshot) -> None:
    try:
        sync_tree(folder)
        sync_path(folder.parent)
    except FileNotFoundError:  # it was removed meanwhile
        _log.debug("%s is not there any more.", folder)
    except OSError as error:
        _log.error("%s is complete, but may not outlive a power failure: the disk refused it (%s).", folder, error)
    copies.release()


class Snapshot:
    """Copies of tensors in main memory, in the same structure; shared memory stays shared.

    Repeated snapshots reuse the memory of the last one, since allocating takes longer than copying. So the copies are
    valid only until the next `begin`.
    """

    def __init__(self) -> None:
        self._memory: list[torch.Tensor] = []
        self._used = 0
        self._copies: dict[Any, torch.Tensor] = {}

    def begin(self) -> None:
        """Invalidate the copies made so far."""
        self._used, self._copies = 0, {}

    def release(self) -> None:
        """Free the memory."""
        self.begin()
        self._memory = []

    def of(self, values: Any) -> Any:
        """Return nested dicts, lists and tuples with copies of their tensors; other values are not copied."""
        import torch

        from ..common.nested import map_nested

        return map_nested(lambda leaf: self._copy(leaf.detach()) if isinstance(leaf, torch.Tensor) else leaf, values)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.numel():
            return tensor.to("cpu", copy=True)
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in self._copies:
            self._copies[key] = self._into_memory(tensor)
        return self._copies[key]

    def _into_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        index, self._used = self._used, self._used + 1
        if index < len(self._memory):
            held = self._memory[index]
            if (held.shape, held.dtype, held.stride()) == (tensor.shape, tensor.dtype, tensor.stride()):
                return held.copy_(tensor)
            del self._memory[index:]
        self._memory.append(tensor.to("cpu", copy=True))
        return self._memory[-1]


def snapshot(values: Any) -> Any:
    """Return nested dicts, lists and tuples with copies of their tensors in new memory; see `Snapshot`."""
    return Snapshot().of(values)


def _takes_copies(model: nn.Module) -> bool:
    save_pretrained = getattr(model, "save_pretrained", None)
    if not callable(save_pretrained):
        return True
    # These read from the live model, adapters by its modules.
    if getattr(model, "hf_quantizer", None) is not None or getattr(model, "peft_config", None):
        return False
    return "state_dict" in inspect.signature(save_pretrained).parameters


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
