"""The complete checkpoints of a training: the newest, the best, and those that may be deleted."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from ...lightning_modules import checkpoints
from ...lightning_modules.common.file_names import TRAINER_STATE_NAME

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class CompleteCheckpoints:
    """Checkpoints of a training that have their final names.

    One thread writes and flushes checkpoints, another one uploads them. Both may delete older ones,
    so a lock protects deletions and renamings.
    """

    newest: Path | None = None
    """The newest checkpoint."""
    best: str | None = None
    """The best checkpoint that exists."""
    origin: str = ""
    """The working directory when training began, to which their paths are relative."""
    _flushed: Path | None = None
    """The newest checkpoint that was flushed to the disk and survives a power failure."""
    _deleting: threading.Lock = field(default_factory=threading.Lock)

    def begin_training(self) -> None:
        """Forget the checkpoints of earlier trainings."""
        self.newest = None
        self.best = None
        self._flushed = None
        # The working directory may have been deleted.
        with contextlib.suppress(FileNotFoundError):
            self.origin = os.getcwd()

    def commit(self, staging: Path, final: Path, best: str | None) -> None:
        """Rename a checkpoint to its final name.

        Args:
            staging: the folder in which it was written.
            final: its final name.
            best: the best checkpoint of the training, which may be this one.
        """
        # A rotation in between would mistake the new folder for one of an earlier run.
        with self._deleting:
            checkpoints.commit(staging, final, flush=False)
            self.newest = final
            self.note_best(best)

    def note_best(self, best: str | None) -> None:
        """Remember the best checkpoint if it exists."""
        if best is not None and os.path.exists(os.path.join(self.origin, best)):
            self.best = best

    def flush(self, limit: int | None) -> None:
        """Flush the newest checkpoint to the disk, then delete the oldest beyond a limit."""
        newest = self.newest
        if newest is None or newest == self._flushed:
            return
        if checkpoints.try_to_flush(newest):
            self._flushed = newest
            self.rotate(limit)

    def rotate(self, limit: int | None) -> None:
        """Delete the oldest checkpoints beyond a limit.

        Nothing is deleted while a power failure could damage the newest checkpoint.

        Args:
            limit: the number of checkpoints to keep; None or 0 to keep all.
        """
        with self._deleting:
            if self.newest is None or self.newest != self._flushed:
                return
            best = None
            if self.best is not None:
                best = os.path.join(self.origin, self.best)
            checkpoints.rotate_checkpoints(
                self.newest.parent,
                limit,
                best_model_checkpoint=best,
                newest=self.newest,
                state_name=TRAINER_STATE_NAME,
            )

    def make_space(self, run_dir: str, size: int, spare: list[str]) -> None:
        """Delete checkpoints until a new one fits on the disk.

        Args:
            run_dir: the checkpoint folder.
            size: the size of the new one in bytes.
            spare: checkpoints that may be deleted, the oldest first.

        Raises:
            DiskFullError: there is not enough space even without them.
        """
        with self._deleting:
            for path in checkpoints.require_space(run_dir, size, spare=spare):
                logger.info(
                    "Removing %s before the next checkpoint is written: the disk is nearly full",
                    path,
                )
                checkpoints.discard(path)
