"""Uploads in the background, one after the other, beside the training: what one consists of, and what became of it.

A checkpoint may be deleted, and `output_dir` written to, long before an upload is through. So the checkpoint's files
are linked, which takes no time and no space, and the other files of `output_dir` are copied.
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
from typing import Any

from ...lightning_modules import checkpoints
from ...lightning_modules.checkpoints import PREFIX_CHECKPOINT_DIR
from .errors import describe
from .repository import Repository

logger = logging.getLogger(__name__)

_NOTICE = 60.0
"""Seconds between two words about an upload that is waited for."""
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


class PushInProgress:
    """As `transformers.utils.PushInProgress`: the uploads that are on their way.

    Args:
        jobs: futures.
    """

    def __init__(self, jobs: list[futures.Future[Any]] | None = None) -> None:
        self.jobs = list(jobs or [])

    def is_done(self) -> bool:
        """Whether none is on its way any more."""
        return all(job.done() for job in self.jobs)

    def wait_until_done(self) -> None:
        """Wait for all of them, however they end; a warning a minute says that it goes on."""
        waited = 0.0
        while futures.wait(self.jobs, timeout=_NOTICE).not_done:
            waited += _NOTICE
            logger.warning("Still uploading to the Hub, %g s by now; Ctrl-C gives it up.", waited)

    def cancel(self) -> None:
        """Give up those that have not begun, and forget those that are done."""
        self.jobs = [job for job in self.jobs if not (job.cancel() or job.done())]


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


@dataclass(frozen=True)
class CheckpointPush:
    """The upload of one checkpoint: the model to the top of the repository, and perhaps the whole into a folder."""

    repository: Repository
    stage: Stage
    message: str
    subfolder: str | None
    """Where the checkpoint itself goes; None means nowhere."""
    write_card: Callable[[Path], None] | None
    """Writes the model card into a folder; None where `output_dir` has one already."""

    def __call__(self) -> None:
        """Upload, and remove the stage whatever happens."""
        try:
            root = self.stage.fill()
            if self.write_card is not None:
                self.write_card(root)
            self.repository.upload(root, self.message)
            if self.subfolder is not None:
                checkpoint = self.stage.checkpoint
                self.repository.upload(checkpoint, f"{self.message}, checkpoint", to=self.subfolder, whole=True)
        finally:
            self.stage.remove()


class Pusher:
    """A thread that uploads, and remembers what became of it."""

    def __init__(self) -> None:
        self.newest_step: int | None = None
        """The step whose model the Hub has."""
        self.failures = 0
        """Uploads that failed since the last `report`."""
        self.newest_failed = False
        self._executor: futures.ThreadPoolExecutor | None = None

    def submit(self, job: Callable[[], Any], *, step: int, what: str, to: Repository) -> futures.Future[Any]:
        """Let the thread do a job when those before it are done.

        Args:
            job: the upload.
            step: of the model that it uploads.
            what: is uploaded, for messages.
            to: where to.
        """
        if self._executor is None:
            self._executor = futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="hub-push")
        return self._executor.submit(self._work, job, step, what, to)

    def failed(self, error: BaseException, what: str, to: Repository) -> None:
        """Note, and say at once, that something could not be uploaded."""
        self.failures += 1
        self.newest_failed = True
        logger.warning("%s was not uploaded to the Hub: %s", what, describe(error, to.token))

    def succeeded(self, step: int) -> None:
        """Note that the Hub has the model of this step."""
        self.newest_step = step
        self.newest_failed = False

    def report(self) -> None:
        """Say at the end what failed on the way, once, and let the thread go."""
        if self.failures:
            state = (
                "What the Hub has now is older than the model here: call push_to_hub() to upload it."
                if self.newest_failed
                else "A later one went well, so the Hub has the newest model."
            )
            logger.warning("%d of the uploads to the Hub failed. %s", self.failures, state)
        self.failures = 0
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None

    def _work(self, job: Callable[[], Any], step: int, what: str, to: Repository) -> Any:
        try:
            result = job()
        except BaseException as error:
            self.failed(error, what, to)
            raise
        self.succeeded(step)
        return result


def draft_is_wanted(output_dir: Path, marker: str) -> bool:
    """Whether an upload brings a card of its own: there is none in `output_dir`, or one that nobody has edited."""
    card = output_dir / CARD_NAME
    try:
        return marker in card.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return True


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
