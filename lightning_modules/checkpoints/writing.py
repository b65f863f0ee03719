"""Who writes the large files of a checkpoint: the caller at once, or a thread while the training goes on.

Both offer the same three things: weights, other tensors, and `finish`, after which the checkpoint gets its name.
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
    """Every file is on its way to the disk when the call returns.

    Args:
        flushed: as for `WrittenFiles`.
    """

    def __init__(self, *, flushed: bool = True) -> None:
        self.written = WrittenFiles(flushed=flushed)

    def weights(self, model: nn.Module, folder: StrPath, state_dict: Mapping[str, Any] | None = None) -> None:
        """See `save_weights`."""
        save_weights(model, folder, state_dict=state_dict, written=self.written)

    def tensors(self, values: Any, path: StrPath) -> None:
        """See `write_torch`."""
        write_torch(values, path, self.written)

    def finish(self, commit: Job, undo: Job) -> None:
        """Call `commit`; `undo` is for those who write later."""
        commit()


class WriteLater:
    """Copies are made on the spot, in main memory; a `BackgroundWriter` writes them.

    Args:
        background: the thread, with nothing on its way.
    """

    def __init__(self, background: BackgroundWriter) -> None:
        self.background = background
        self.background.snapshot.begin()
        self.written = WrittenFiles()
        self.jobs: list[Job] = []

    def weights(self, model: nn.Module, folder: StrPath, state_dict: Mapping[str, Any] | None = None) -> None:
        """As `WriteNow.weights`; at once where a model saves itself and takes no copy of its weights."""
        if not _takes_copies(model):
            save_weights(model, folder, state_dict=state_dict, written=self.written)
            return
        copied = self.background.snapshot.of(model.state_dict() if state_dict is None else state_dict)
        self.jobs.append(partial(save_weights, model, folder, state_dict=copied, written=self.written))

    def tensors(self, values: Any, path: StrPath) -> None:
        """See `WriteNow.tensors`."""
        self.jobs.append(partial(write_torch, self.background.snapshot.of(values), path, self.written))

    def finish(self, commit: Job, undo: Job) -> None:
        """Let the thread write, then call `commit`, or `undo` if it could not."""
        self.background.start([*self.jobs, commit], undo)


class BackgroundWriter:
    """At most one checkpoint on its way; what went wrong is raised by the next `wait`."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self._flushing: threading.Thread | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written at this moment."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, jobs: list[Job], undo: Job) -> None:
        """Do the jobs in their order, in a thread.

        Args:
            jobs: the last one makes the result visible.
            undo: called when one of them fails.

        Raises:
            BaseException: what an earlier `start` ended in.
        """
        self.wait()
        # Not a daemon: a script that ends, or fails, in the meantime still gets its checkpoint.
        self._thread = threading.Thread(target=self._work, args=(jobs, undo), name="checkpoint-writer", daemon=False)
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is being written any more.

        Raises:
            BaseException: what the writing ended in; once.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def flush(self, folder: Path) -> None:
        """Begin to bring a complete checkpoint to the disk, then give back the memory of the copies.

        A program does not end before it is there.
        """
        self.wait_until_flushed()
        copies, self.snapshot = self.snapshot, Snapshot()
        self._flushing = threading.Thread(target=_flush, args=(folder, copies), name="checkpoint-flush", daemon=False)
        self._flushing.start()

    def wait_until_flushed(self) -> None:
        """Return when the checkpoint of the last `flush` is on the disk."""
        thread, self._flushing = self._flushing, None
        if thread is not None:
            thread.join()

    def _work(self, jobs: list[Job], undo: Job) -> None:
        try:
            for job in jobs:
                job()
        except BaseException as error:  # handed over to the thread that trains
            self._error = error
            try:
                undo()
            except OSError as second:
                _log.warning("What was begun of a checkpoint could not be removed: %s", second)


def _flush(folder: Path, copies: Snapshot) -> None:
    try:
        sync_tree(folder)
        sync_path(folder.parent)
    except FileNotFoundError:  # somebody has removed it in the meantime
        _log.debug("%s is not there any more.", folder)
    except OSError as error:
        _log.error("%s is complete, but may not outlive a power failure: the disk refused it (%s).", folder, error)
    copies.release()


class Snapshot:
    """Copies of tensors in main memory, in the same structure; what shares its memory shares it in the copy too.

    Taken again and again of the same tensors it copies into the memory of the last time: to get fresh memory from the
    system takes longer than to copy. So the copies are good only until the next `begin`.
    """

    def __init__(self) -> None:
        self._memory: list[torch.Tensor] = []
        self._used = 0
        self._copies: dict[Any, torch.Tensor] = {}

    def begin(self) -> None:
        """Give up the copies made so far."""
        self._used, self._copies = 0, {}

    def release(self) -> None:
        """Give the memory back."""
        self.begin()
        self._memory = []

    def of(self, values: Any) -> Any:
        """Return copies of tensors in nested dicts, lists and tuples; everything else is handed on as it is."""
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
    """Return copies of tensors in nested dicts, lists and tuples, in memory of their own; see `Snapshot`."""
    return Snapshot().of(values)


def _takes_copies(model: nn.Module) -> bool:
    save_pretrained = getattr(model, "save_pretrained", None)
    if not callable(save_pretrained):
        return True
    # These ask the live model for what they save, adapters by its modules.
    if getattr(model, "hf_quantizer", None) is not None or getattr(model, "peft_config", None):
        return False
    return "state_dict" in inspect.signature(save_pretrained).parameters


def warn_if_disk_full(error: BaseException, folder: StrPath) -> None:
    """Turn a full disk into a warning: the checkpoints that are there already are more than a training that ended.

    Raises:
        BaseException: the error itself, if it is another one.
    """
    if not is_disk_full(error, folder):
        raise error
    _log.warning(
        "No checkpoint was written to %s, for the disk is full (%s). Training goes on, and the older checkpoints are "
        "untouched. Free some space, or set save_total_limit or save_only_model.",
        Path(folder),
        error,
    )
