"""Lock a journal file, and repair the file before it is written."""

from __future__ import annotations

import os

from optuna.storages.journal import JournalFileSymlinkLock


class RepairingLock(JournalFileSymlinkLock):
    """Lock a journal for a process that appends to it, and remove an incomplete last line.

    A failed write, for example on a full disk, leaves such a line. Optuna would append to it, and
    could not read the journal afterwards.

    Args:
        path: the absolute path of the journal. The lock is a symbolic link to it. With a relative
            path, the link would point into another folder, and the lock of a killed process would
            be held forever.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def acquire(self) -> bool:
        """Wait for the lock, repair the file, and return whether the lock is held."""
        is_acquired = super().acquire()
        try:
            self._repair()
        except OSError:
            self.release()
            raise
        return is_acquired

    def _repair(self) -> None:
        """Remove the last line if it does not end with a newline."""
        with open(self.path, "rb+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            if file.read() not in (b"", b"\n"):
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
