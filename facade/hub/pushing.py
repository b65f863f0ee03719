"""Background uploads, one after the other, during a training.

A checkpoint may be deleted, and `output_dir` written to, before an upload ends. So the files of the
checkpoint are hard linked, and the other files of `output_dir` are copied.
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
from typing import TYPE_CHECKING, Any

from ...lightning_modules import checkpoints
from ...lightning_modules.common.file_names import PREFIX_CHECKPOINT_DIR
from .errors import describe, is_passing
from .repository import Repository

if TYPE_CHECKING:
    from huggingface_hub import HfApi

logger = logging.getLogger(__name__)

LAST_CHECKPOINT = "last-checkpoint"
"""Folder of the newest checkpoint in the repository with `hub_strategy="checkpoint"`."""

CARD_NAME = "README.md"

NOT_UPLOADED = (
    "_*",
    ".hub-upload-*",
    ".training.lock",
    f"{LAST_CHECKPOINT}/*",
    f"{PREFIX_CHECKPOINT_DIR}-*",
    f"*/{PREFIX_CHECKPOINT_DIR}-*",
    f".{PREFIX_CHECKPOINT_DIR}-*",
)
"""Patterns excluded from uploads of `output_dir`: checkpoints, and files being written."""

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


class PushInProgress:
    """As `transformers.utils.PushInProgress`: the pending uploads.

    Args:
        jobs: futures.
    """

    def __init__(self, jobs: list[futures.Future[Any]] | None = None) -> None:
        self.jobs = list(jobs or [])

    def is_done(self) -> bool:
        """Return whether all have ended."""
        return all(job.done() for job in self.jobs)

    def wait_until_done(self) -> None:
        """Wait for all, failed ones too."""
        futures.wait(self.jobs)

    def cancel(self) -> None:
        """Cancel those that have not begun, and drop those that are done."""
        self.jobs = [job for job in self.jobs if not (job.cancel() or job.done())]


class Stage:
    """Staging folder of the upload of a checkpoint; linked at once, filled by the uploading thread.

    Args:
        checkpoint: a complete checkpoint.
        output_dir: on the same file system.
    """

    def __init__(self, checkpoint: Path, output_dir: Path) -> None:
        self.output_dir = output_dir
        # Removed by the next run if this one is killed.
        self.folder = checkpoints.begin(output_dir / f"hub-upload-{next(_NUMBERS)}")
        self.checkpoint = self.folder / "checkpoint"
        self.root = self.folder / "root"
        try:
            for name in _files(checkpoint):
                _link(checkpoint / name, self.checkpoint / name)
        except BaseException:
            self.remove()
            raise

    def fill(self) -> Path:
        """Fill and return the folder for the top of the repository: model and other files of
        `output_dir`.
        """
        self.root.mkdir(exist_ok=True)
        for name in _files(self.checkpoint):
            if not _matches(name, _ONLY_FOR_RESUMING):
                _link(self.checkpoint / name, self.root / name)
        for name in _files(self.output_dir):
            # Weights only from the checkpoint: a mix of two sets of shards is not a model.
            if not _matches(name, (*NOT_UPLOADED, *_WEIGHTS)) and not (self.root / name).exists():
                self._take(name)
        return self.root

    def remove(self) -> None:
        """Remove the folder."""
        checkpoints.abort(self.folder)

    def _take(self, name: str) -> None:
        source, target = self.output_dir / name, self.root / name
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            if source.stat().st_size < _BYTES_TO_LINK or _matches(name, _STILL_WRITTEN):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
            else:
                _link(source, target)


@dataclass(frozen=True)
class CheckpointPush:
    """Upload of a checkpoint: the model to the top of the repository, optionally all files to a
    folder.
    """

    repository: Repository
    stage: Stage
    message: str
    subfolder: str | None
    """Folder for the whole checkpoint, or None."""
    write_card: Callable[[Path], None] | None
    """Writes the model card into a folder; None if `output_dir` has one."""

    def __call__(self) -> None:
        """Upload, and always remove the stage."""
        try:
            root = self.stage.fill()
            if self.write_card is not None:
                self.write_card(root)
            self.repository.upload(root, self.message)
            if self.subfolder is not None:
                checkpoint = self.stage.checkpoint
                self.repository.upload(
                    checkpoint, f"{self.message}, checkpoint", to=self.subfolder, whole=True
                )
        finally:
            self.stage.remove()


class Pusher:
    """Upload in a thread, and record results and failures."""

    def __init__(self) -> None:
        self.newest_step: int | None = None
        """Step of the model on the Hub."""
        self.failures = 0
        """Uploads that failed since the last `report`."""
        self.newest_failed = False
        self.is_unreachable = False
        """The last upload failed because the Hub did not answer, or not properly."""
        self._api: HfApi | None = None
        """Its one thread runs the uploads of a training in their order."""

    def submit(
        self, job: Callable[[], Any], *, step: int, what: str, to: Repository
    ) -> futures.Future[Any]:
        """Queue an upload.

        Args:
            job: the upload.
            step: of the uploaded model.
            what: name of the uploaded object, for messages.
            to: target.
        """
        if self._api is None:
            from huggingface_hub import HfApi

            self._api = HfApi()
        return self._api.run_as_future(self._work, job, step, what, to)

    def failed(self, error: BaseException, what: str, to: Repository) -> None:
        """Record and log a failed upload."""
        self.failures += 1
        self.newest_failed = True
        self.is_unreachable = is_passing(error)
        logger.warning("%s was not uploaded to the Hub: %s", what, describe(error, to.token))

    def succeeded(self, step: int) -> None:
        """Record the step of the model on the Hub."""
        self.newest_step = step
        self.newest_failed = False
        self.is_unreachable = False

    def report(self, to: Repository, output_dir: str) -> None:
        """Log the failures of a training once, and release the thread.

        Args:
            to: target of the uploads.
            output_dir: where the checkpoints are.
        """
        if self.failures and self.newest_failed:
            found = "no model of this training"
            if self.newest_step is not None:
                found = f"that of step {self.newest_step}"
            logger.warning(
                "Failed uploads to the Hub: %d. The model on the Hub is older than this one: %s "
                "has %s. The checkpoints are in %s, and trainer.push_to_hub() uploads the model.",
                self.failures,
                to.name,
                found,
                output_dir,
            )
        elif self.failures:
            logger.warning(
                "Failed uploads to the Hub: %d. A later one succeeded with the newest model.",
                self.failures,
            )
        self.failures = 0
        self._api = None

    def _work(self, job: Callable[[], Any], step: int, what: str, to: Repository) -> Any:
        try:
            result = job()
        except BaseException as error:
            self.failed(error, what, to)
            raise
        self.succeeded(step)
        return result


def draft_is_wanted(output_dir: Path, marker: str) -> bool:
    """Return whether to write a draft of the card: `output_dir` has none, or an unedited draft."""
    card = output_dir / CARD_NAME
    try:
        return marker in card.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return True


def _files(folder: Path) -> Iterator[str]:
    """Yield the files below a folder by relative name; git, the cache of `huggingface_hub`,
    checkpoints are skipped.
    """
    for place, folders, names in os.walk(folder):
        inside = Path(place).relative_to(folder)
        folders[:] = [
            name for name in folders if name not in (".git", ".cache") and not _hidden_work(name)
        ]
        yield from ((inside / name).as_posix() for name in sorted(names))


def _hidden_work(name: str) -> bool:
    return name.startswith(
        (f"{PREFIX_CHECKPOINT_DIR}-", f".{PREFIX_CHECKPOINT_DIR}-", ".hub-upload-")
    )


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _link(source: Path, target: Path) -> None:
    """Hard link a file; copy it if the file system has no hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
