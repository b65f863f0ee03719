"""Run uploads in a thread during training, and with retries at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from .store_folder import StoreError

logger = logging.getLogger(__name__)

PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each attempt to upload the remaining files at the end of a training.

The storage library retries too. During training, each checkpoint is one attempt.
"""


class Uploader:
    """Runs uploads one at a time.

    An upload is a function that uploads all files that the store lacks, and raises `StoreError`.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-upload")
        self._job: Future[None] | None = None
        self._is_failing = False
        """Whether the last upload in the thread failed. The failure has been logged."""

    def run_in_background(self, upload: Callable[[], None]) -> None:
        """Run an upload in the thread, after the one in progress."""
        # A job that has not started would upload the same files.
        if self._job is not None:
            self._job.cancel()
        self._job = self._thread.submit(self._run_or_warn, upload)

    def run_with_retries(self, upload: Callable[[], None]) -> None:
        """Wait for the thread, and run an upload in this one.

        Raises:
            StoreError: the error of the last attempt.
        """
        self.wait()
        for pause in PAUSES[:-1]:
            time.sleep(pause)
            try:
                upload()
            except StoreError:
                continue
            return

        # Let the error of the last attempt propagate.
        time.sleep(PAUSES[-1])
        upload()

    def wait(self) -> None:
        """Wait for the uploads in the thread."""
        if self._job is not None:
            self._job.result()

    def _run_or_warn(self, upload: Callable[[], None]) -> None:
        """Run an upload, and log an error of the store once per outage.

        Other errors of the last upload are raised by `wait`.
        """
        try:
            upload()
        except StoreError as error:
            if not self._is_failing:
                logger.warning("%s Training continues, and the next upload tries again.", error)
            self._is_failing = True
        else:
            self._is_failing = False
