"""Support a URL such as `s3://bucket/run` as `output_dir`: upload in the background, and download
checkpoints to resume from.

Training writes to a local folder, and fsspec uploads its files to the store. A checkpoint in the
store contains a file `_incomplete` while it is uploaded or deleted, so that an interrupted upload
is never resumed from. Checkpoints uploaded by other programs do not have that file and are
accepted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ...lightning_modules import checkpoints
from ...lightning_modules.common.collectives import gather_objects
from ...lightning_modules.common.local_paths import local_folder
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ..distributed.collectives import broadcast_from_rank_zero
from ..hub.errors import describe
from .complete_checkpoints import CompleteCheckpoints
from .store_folder import StoreError, StoreFolder, open_store, store_errors
from .uploader import Uploader

if TYPE_CHECKING:
    from .. import Trainer

logger = logging.getLogger(__name__)


class ObjectStore:
    """Keeps the URL of `output_dir` up to date with the local folder.

    Does nothing for an `output_dir` that is a folder.

    Args:
        trainer: the Trainer.
        complete: the checkpoints of the local folder that have their final names.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer, complete: CompleteCheckpoints) -> None:
        self.trainer = trainer
        self.complete = complete
        self._run_store: StoreFolder | None = None
        """The store of the checkpoint folder, after training has begun."""
        self._uploader = Uploader()

    @property
    def is_open(self) -> bool:
        """Return whether `output_dir` is a URL."""
        return self._output_store is not None

    @property
    def _output_store(self) -> StoreFolder | None:
        return open_store(str(self.trainer.args.output_dir))

    @property
    def _is_uploading_rank(self) -> bool:
        """Return whether this process uploads: rank 0, if `output_dir` is a URL."""
        return self.trainer.args.process_index == 0 and self.is_open

    # --- uploads

    def begin_training(self, run_dir: str) -> None:
        """Check that the store can be written to, and finish uploads of an earlier run.

        Must be called on all ranks.

        Args:
            run_dir: the checkpoint folder, which is below `output_dir` in a trial of a search.

        Raises:
            ConnectionError: the store cannot be reached or written to. Raised on all ranks.
        """
        store = open_store(run_dir)
        if store is not None:
            self._run_store = store
            self._run_on_ranks(partial(self._prepare, store), runs=self._is_uploading_rank)

    def upload_in_background(self) -> None:
        """Upload new files in a thread of rank 0."""
        if self._is_uploading_rank:
            self._uploader.run_in_background(self._upload)

    def finish_uploads(self) -> None:
        """Upload the remaining files, and wait for all uploads. Must be called on all ranks.

        Raises:
            ConnectionError: an upload failed. Raised on all ranks.
        """
        if self.is_open:
            self._run_on_ranks(self._upload_with_retries, runs=self._is_uploading_rank)

    def upload_written_files(self) -> None:
        """Upload files that were written to `output_dir` outside of training.

        During training, `finish_uploads` uploads them.

        Raises:
            ConnectionError: the upload failed.
        """
        if self._is_uploading_rank and not self.trainer.is_in_train:
            self._upload_with_retries()

    def wait_for_uploads(self) -> None:
        """Wait for background uploads at the end of a training, which may have failed.

        Upload errors are only logged, so that an error of the training is raised.
        """
        try:
            self._uploader.wait()
        except Exception as error:
            logger.error("An upload failed: %s", describe(error))

    def _upload_with_retries(self) -> None:
        self._uploader.run_with_retries(self._upload)

    def _upload(self) -> None:
        """Upload all files that the store lacks.

        Raises:
            StoreError: an upload failed.
        """
        args = self.trainer.args
        store = self._run_store or self._output_store
        if store is not None:
            with store_errors(str(args.output_dir)):
                self._send(store, args.save_total_limit or 0)

    def _send(self, store: StoreFolder, limit: int) -> None:
        """Upload checkpoints, newest first, then other files.

        Args:
            store: the store of the checkpoint folder.
            limit: maximum number of checkpoints in the store. 0 keeps all.
        """
        self.complete.rotate(limit)
        while True:
            unsent = store.unsent()
            if not unsent:
                break
            store.send(unsent[-1])
            self.complete.rotate(limit)

        # All are in the store now, so only the newest must be kept on the local disk.
        self.complete.rotate(limit or 1)
        output_store = self._output_store
        if output_store is not None:
            output_store.send_others()

        if limit:
            stored = store.stored_checkpoints()
            local = store.local_checkpoints()
            only_stored = [name for name in stored if name not in local]
            for name in only_stored[: max(len(stored) - limit, 0)]:
                store.discard(name)

    def _prepare(self, store: StoreFolder) -> None:
        # Write, list and delete a file, so that missing permissions raise before training.
        store.discard(".probe")
        self._send(store, 0)

        # Remove incomplete uploads of a terminated machine.
        for name in store.stored_checkpoints(complete=False):
            store.discard(name)
        stored = store.stored_checkpoints()
        for name in store.local_checkpoints():
            if name not in stored:
                logger.warning(
                    "Removing %s, because %s does not have it any more.",
                    store.folder / name,
                    store.address,
                )
                checkpoints.discard(store.folder / name)

    # --- downloads

    def fetch(self, path: str | os.PathLike[str]) -> str:
        """Download a checkpoint if it is a URL, and return its local folder.

        All processes must call this.

        Raises:
            ValueError: the URL is invalid.
        """
        local = os.path.abspath(local_folder(path))
        run_dir, name = os.path.split(local)
        store = open_store(run_dir)
        if store is None:
            return os.fspath(path)
        self._run_on_ranks(
            partial(store.fetch, name), runs=self.trainer.args.local_process_index == 0
        )
        if os.path.isdir(local):
            return local
        return os.fspath(path)

    def fetch_newest(self, *, weights: bool = True) -> None:
        """Download the newest intact checkpoint of `output_dir` to each machine.

        All processes must call this.

        Args:
            weights: as for `problems`.
        """
        args = self.trainer.args
        store = self._output_store
        if store is None:
            return
        names: list[str] = []
        self._run_on_ranks(
            lambda: names.extend(store.stored_checkpoints()), runs=args.process_index == 0
        )

        # A checkpoint must be intact on every machine. Otherwise all try the previous one.
        for name in reversed(broadcast_from_rank_zero(names, args.world_size)):
            first_rank_of_node = args.local_process_index == 0
            self._run_on_ranks(partial(store.fetch, name), runs=first_rank_of_node)
            damaged = first_rank_of_node and bool(
                checkpoints.problems(store.folder / name, weights=weights)
            )
            if not any(gather_objects(damaged)):
                return

    # --- several processes

    def _run_on_ranks(self, job: Callable[[], None], *, runs: bool) -> None:
        """Run a job on some ranks, and raise its error on all.

        Args:
            job: reads or writes the store.
            runs: whether this process runs it.
        """
        own_error: Exception | None = None
        shared_error: Exception | None = None
        if runs:
            try:
                with store_errors(str(self.trainer.args.output_dir)):
                    job()
            except Exception as error:
                own_error = error
                shared_error = error
                # Other error classes may not be picklable, or not exist on other ranks.
                if not isinstance(error, StoreError):
                    shared_error = RuntimeError(describe(error))

        # Exchange errors before raising, because the other ranks wait here.
        errors = gather_objects(shared_error)
        if own_error is not None:
            raise own_error
        for error_of_rank in errors:
            if error_of_rank is not None:
                raise error_of_rank
