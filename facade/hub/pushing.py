"""Upload in the background during training, one upload at a time.

During an upload, the training may delete the checkpoint and write to `output_dir`. Each upload
therefore uses hard links to the files of the checkpoint, and copies of the other files of
`output_dir`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...lightning_modules import checkpoints
from ...lightning_modules.common.file_names import PREFIX_CHECKPOINT_DIR
from .errors import describe, is_transient
from .repository import Repository

if TYPE_CHECKING:
    from huggingface_hub import HfApi

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

LAST_CHECKPOINT = "last-checkpoint"
"""Folder of the newest checkpoint in the repository with `hub_strategy="checkpoint"`."""

CARD_NAME = "README.md"

_UPLOAD_PREFIX = "hub-upload-"
"""Prefix of staging folders, after the dot that marks every folder that is being written."""

NOT_UPLOADED = (
    "_*",
    ".training.lock",
    # Files and folders that a process is writing, or was writing when it was killed.
    ".*.partial-*",
    "*/.*.partial-*",
    # Weights files that safetensors was writing, and other such files.
    ".tmp??????",
    "*/.tmp??????",
    ".*.tmp",
    "*/.*.tmp",
    f"{LAST_CHECKPOINT}/*",
    f"{PREFIX_CHECKPOINT_DIR}-*",
    f"*/{PREFIX_CHECKPOINT_DIR}-*",
    f".{PREFIX_CHECKPOINT_DIR}-*",
)
"""Patterns excluded from uploads of `output_dir`: checkpoints, and files being written."""

_RESUMPTION_FILES = (
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
"""Patterns of checkpoint files that are only needed to resume."""
_WEIGHTS = ("model*.safetensors*", "pytorch_model*.bin*", "adapter_model.*")
_MIN_BYTES_TO_LINK = 64 * 2**20
"""Smaller files of `output_dir` are copied, because they may be changed in place."""

_GROWING_FILES = ("*tfevents*", "*.log")
"""Patterns of files that are always copied, because they are appended to."""
_CHECKPOINT_FOLDERS = (
    f"{PREFIX_CHECKPOINT_DIR}-",
    f".{PREFIX_CHECKPOINT_DIR}-",
    f".{_UPLOAD_PREFIX}",
)
"""Prefixes of checkpoints, and of folders being written."""

_upload_numbers = itertools.count(1)


class PushInProgress:
    """Unfinished uploads to the Hub.

    Works like `transformers.utils.PushInProgress`.

    Args:
        jobs: the futures of the uploads.
    """

    def __init__(self, jobs: list[futures.Future[Any]] | None = None) -> None:
        self.jobs = list(jobs or [])

    def is_done(self) -> bool:
        """Return whether all uploads have finished, failed or been cancelled."""
        return all(job.done() for job in self.jobs)

    def wait_until_done(self) -> None:
        """Wait until all uploads are done; failures are not raised."""
        futures.wait(self.jobs)

    def cancel(self) -> None:
        """Cancel the uploads that have not started."""
        running: list[futures.Future[Any]] = []
        for job in self.jobs:
            was_cancelled = job.cancel()
            if not was_cancelled and not job.done():
                running.append(job)
        self.jobs = running


class StagingFolder:
    """Files of one checkpoint upload, in a hidden folder of `output_dir`.

    The constructor links the files of the checkpoint before the training can delete it. `fill` adds
    the other files, in the upload thread.

    Args:
        checkpoint: a complete checkpoint.
        output_dir: a folder on the same file system.
    """

    def __init__(self, checkpoint: Path, output_dir: Path) -> None:
        self.output_dir = output_dir
        # If this process is killed, the next run removes the folder.
        self.folder = checkpoints.begin(output_dir / f"{_UPLOAD_PREFIX}{next(_upload_numbers)}")
        self.checkpoint = self.folder / "checkpoint"
        self.root = self.folder / "root"
        try:
            for name in _files(checkpoint):
                _link(checkpoint / name, self.checkpoint / name)
        except BaseException:
            self.remove()
            raise

    def fill(self) -> Path:
        """Fill and return the folder for the root of the repository.

        It contains the model, and the other files of `output_dir`.
        """
        # Add the model.
        self.root.mkdir(exist_ok=True)
        for name in _files(self.checkpoint):
            if not _matches(name, _RESUMPTION_FILES):
                _link(self.checkpoint / name, self.root / name)

        # Add the other files, except weights, which belong to another save.
        excluded = (*NOT_UPLOADED, *_WEIGHTS)
        for name in _files(self.output_dir):
            if _matches(name, excluded):
                continue
            if not (self.root / name).exists():
                self._add_from_output_dir(name)
        return self.root

    def remove(self) -> None:
        """Remove the folder."""
        checkpoints.abort(self.folder)

    def _add_from_output_dir(self, name: str) -> None:
        """Copy or link a file of `output_dir`."""
        source = self.output_dir / name
        target = self.root / name
        # The script may delete a file at any time.
        with contextlib.suppress(FileNotFoundError):
            is_small = source.stat().st_size < _MIN_BYTES_TO_LINK
            if is_small or _matches(name, _GROWING_FILES):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
            else:
                _link(source, target)


@dataclass(frozen=True)
class CheckpointUpload:
    """Upload of a checkpoint: the model to the root of the repository, the whole checkpoint to a
    folder.
    """

    repository: Repository
    staging: StagingFolder
    message: str
    path_in_repo: str | None
    """Folder of the repository for the whole checkpoint; None uploads only the model."""
    write_card: Callable[[Path], None] | None
    """Function that writes the model card into a folder; None if `output_dir` has one."""

    def __call__(self) -> None:
        """Upload, and remove the staging folder even if the upload fails."""
        try:
            root = self.staging.fill()
            if self.write_card is not None:
                self.write_card(root)
            self.repository.upload(root, self.message)

            if self.path_in_repo is not None:
                self.repository.upload(
                    self.staging.checkpoint,
                    f"{self.message}, checkpoint",
                    path_in_repo=self.path_in_repo,
                    delete_missing=True,
                )
        finally:
            self.staging.remove()


class Pusher:
    """Runs uploads in a thread, and records which of them failed."""

    def __init__(self) -> None:
        self.newest_step: int | None = None
        """Step of the model on the Hub."""
        self.failures = 0
        """Number of uploads that failed since the last `report`."""
        self.newest_failed = False
        """Whether the last upload failed."""
        self.is_unreachable = False
        """Whether the last upload failed because the Hub was not reachable."""
        self._api: HfApi | None = None
        """Pool with one thread, which runs the uploads of a training in order."""

    def submit(
        self, upload: Callable[[], Result], *, step: int, label: str, repository: Repository
    ) -> futures.Future[Result]:
        """Queue an upload.

        Args:
            upload: function that uploads, called in the thread.
            step: the step of the uploaded model.
            label: description of the upload, for messages.
            repository: the repository to upload to.
        """
        if self._api is None:
            from huggingface_hub import HfApi

            self._api = HfApi()
        return self._api.run_as_future(self._upload, upload, step, label, repository)

    def record_failure(self, error: BaseException, label: str, repository: Repository) -> None:
        """Record and log a failed upload."""
        self.failures += 1
        self.newest_failed = True
        self.is_unreachable = is_transient(error)
        logger.warning(
            "%s was not uploaded to the Hub: %s", label, describe(error, repository.token)
        )

    def record_success(self, step: int) -> None:
        """Record the step of the model on the Hub."""
        self.newest_step = step
        self.newest_failed = False
        self.is_unreachable = False

    def report(self, repository: Repository, output_dir: str) -> None:
        """Log the failures of a training once, and release the thread.

        Args:
            repository: the target of the uploads.
            output_dir: the folder of the checkpoints.
        """
        # The user needs to act only if the newest model is not on the Hub.
        if self.failures and self.newest_failed:
            newest = "no model of this training"
            if self.newest_step is not None:
                newest = f"the model of step {self.newest_step}"
            logger.warning(
                "Failed uploads to the Hub: %d. The model on the Hub is outdated: %s has %s. "
                "The checkpoints are in %s; upload the model with trainer.push_to_hub().",
                self.failures,
                repository.name,
                newest,
                output_dir,
            )
        elif self.failures:
            logger.warning(
                "Failed uploads to the Hub: %d. A later one succeeded with the newest model.",
                self.failures,
            )

        # Reset the state for the next training, which uses another thread.
        self.failures = 0
        self._api = None

    def _upload(
        self, upload: Callable[[], Result], step: int, label: str, repository: Repository
    ) -> Result:
        """Upload, and record the result; runs in the thread."""
        try:
            result = upload()
        except BaseException as error:
            self.record_failure(error, label, repository)
            raise
        self.record_success(step)
        return result


def needs_draft(output_dir: Path, marker: str) -> bool:
    """Return whether to write a draft of the model card.

    True if `output_dir` has no card, or has a card with the comment of a draft.

    Args:
        output_dir: the folder of the card.
        marker: text that drafts contain.
    """
    card = output_dir / CARD_NAME
    try:
        return marker in card.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return True


def _files(folder: Path) -> Iterator[str]:
    """Yield the relative paths of the files below a folder.

    Folders of git, of the cache of `huggingface_hub`, and of checkpoints are skipped.
    """
    for path, subfolders, names in os.walk(folder):
        # Remove folders from the list of `os.walk`, so that it does not enter them.
        for name in list(subfolders):
            if name in (".git", ".cache") or name.startswith(_CHECKPOINT_FOLDERS):
                subfolders.remove(name)

        relative = Path(path).relative_to(folder)
        for name in sorted(names):
            yield (relative / name).as_posix()


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _link(source: Path, target: Path) -> None:
    """Hard link a file, or copy it if the file system does not support hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
