"""What one upload consists of, in a folder of its own that nobody changes while it is read.

A checkpoint may be deleted, and `output_dir` written to, long before an upload is through. So the checkpoint's files
are linked, which takes no time and no space, and the other files of `output_dir` are copied.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints import PREFIX_CHECKPOINT_DIR

LAST_CHECKPOINT = "last-checkpoint"
"""Where `hub_strategy="checkpoint"` keeps the newest checkpoint in the repository."""

CARD_NAME = "README.md"

NOT_UPLOADED = (
    "_*",
    f"{PREFIX_CHECKPOINT_DIR}-*",
    f"*/{PREFIX_CHECKPOINT_DIR}-*",
    f".{PREFIX_CHECKPOINT_DIR}-*",
    ".hub-upload-*",
    f"{LAST_CHECKPOINT}/*",
)
"""Patterns of what stays here when `output_dir` is uploaded: checkpoints, and what somebody is about to write."""

_ONLY_FOR_RESUMING = (
    "optimizer.*",
    "scheduler.pt",
    "scaler.pt",
    "rng_state*.pth",
    "data_state_*.pth",
    "lightning_state.pt",
    "trainer_state.json",
    "global_step*",
    "_*",
)
_WEIGHTS = ("model*.safetensors*", "pytorch_model*.bin*", "adapter_model.*")
_BYTES_TO_LINK = 64 * 2**20
_STILL_WRITTEN = ("*tfevents*", "*.log")
_NUMBERS = itertools.count(1)


class Stage:
    """The files of one upload of a checkpoint; begun at once, filled up by the thread that uploads.

    Args:
        checkpoint: a complete checkpoint.
        output_dir: on the same file system.
    """

    def __init__(self, checkpoint: Path, output_dir: Path) -> None:
        self.output_dir = output_dir
        self.folder = checkpoints.begin(
            output_dir / f"hub-upload-{next(_NUMBERS)}"
        )  # removed by the next run if this one is killed
        self.checkpoint = self.folder / "checkpoint"
        self.root = self.folder / "root"
        try:
            for name in _files(checkpoint):
                _link(checkpoint / name, self.checkpoint / name)
        except BaseException:
            self.remove()
            raise

    def fill(self) -> Path:
        """What goes to the top of the repository: the model of the checkpoint, and what else `output_dir` holds."""
        self.root.mkdir(exist_ok=True)
        for name in _files(self.checkpoint):
            if not _matches(name, _ONLY_FOR_RESUMING):
                _link(self.checkpoint / name, self.root / name)
        for name in _files(self.output_dir):
            # Of weights only those of the checkpoint: two sets of shards would not make one model.
            if not _matches(name, (*NOT_UPLOADED, *_WEIGHTS)) and not (self.root / name).exists():
                self._take(name)
        return self.root

    def remove(self) -> None:
        """Give it up, or let go of it."""
        checkpoints.abort(self.folder)

    def _take(self, name: str) -> None:
        source, target = self.output_dir / name, self.root / name
        with contextlib.suppress(FileNotFoundError):  # somebody has deleted it meanwhile
            if source.stat().st_size < _BYTES_TO_LINK or any(fnmatch(name, pattern) for pattern in _STILL_WRITTEN):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
            else:
                _link(source, target)


def _files(folder: Path) -> Iterator[str]:
    """All files below a folder, by their names relative to it; those of git and of the cache of `huggingface_hub` not.

    Listed folder by folder, so that nothing is entered that is not uploaded anyway.
    """
    for place, folders, names in os.walk(folder):
        inside = Path(place).relative_to(folder)
        folders[:] = [name for name in folders if name not in (".git", ".cache") and not _hidden_work(name)]
        yield from ((inside / name).as_posix() for name in sorted(names))


def _hidden_work(name: str) -> bool:
    return name.startswith((f"{PREFIX_CHECKPOINT_DIR}-", f".{PREFIX_CHECKPOINT_DIR}-", ".hub-upload-"))


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _link(source: Path, target: Path) -> None:
    """Another name for a file; a copy where the file system has no such thing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
