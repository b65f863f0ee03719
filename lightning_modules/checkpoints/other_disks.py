"""Machines with disks of their own: what their processes write beside the one that saves needs a folder there, too."""

from __future__ import annotations

from pathlib import Path

from .checksums import take_noted
from .folders import rotate_checkpoints
from .names import StrPath
from .staging import abort, commit

__all__ = ["OtherDisk"]


class OtherDisk:
    """The folder of a checkpoint in the making, on a machine whose disk the process that saves does not write to.

    Args:
        folder: the folder in the making.
        asked: whether this process is the one that sees to it on its machine.
    """

    def __init__(self, folder: StrPath, asked: bool) -> None:
        self.folder = Path(folder)
        self.is_ours = asked and self._make()

    def _make(self) -> bool:
        """Whether it was not there. To look would not do: network disks remember for a while what was not."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.folder.mkdir()
        except FileExistsError:
            return False
        return True

    def finish(self, final: StrPath, limit: int | None) -> None:
        """Give it its name, and remove the oldest beside it.

        Args:
            final: its name when it is complete.
            limit: how many checkpoints stay.
        """
        if self.is_ours:
            take_noted(self.folder)  # the one that saves lists the files of its own disk only
            commit(self.folder, final, keep_guests=True)
            rotate_checkpoints(Path(final).parent, limit, newest=final)

    def give_up(self) -> None:
        """Remove it."""
        if self.is_ours:
            abort(self.folder)
