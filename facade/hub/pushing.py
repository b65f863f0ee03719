"""Uploads in the background: one after the other, beside the training, and what became of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import describe
from .repository import Repository
from .staging import CARD_NAME, Stage

logger = logging.getLogger(__name__)

_NOTICE = 60.0
"""Seconds between two words about an upload that is waited for."""


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
