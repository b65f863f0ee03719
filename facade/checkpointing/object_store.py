"""An address such as `s3://bucket/run` as `output_dir`: background uploads, and downloads of
checkpoints to resume from.

The training writes into a local folder, and fsspec uploads its files to the store. A checkpoint in
the store holds the file `_incomplete` while it is uploaded and while it is deleted, so that one
whose upload was killed is never resumed from. Checkpoints that other programs uploaded lack that
file, and are accepted.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...lightning_modules import checkpoints
from ...lightning_modules.common.collectives import gather_objects
from ...lightning_modules.common.local_paths import address_of, local_folder
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ..distributed.collectives import broadcast_from_rank_zero
from ..hub.errors import describe

if TYPE_CHECKING:
    from .. import Trainer

logger = logging.getLogger(__name__)

PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each attempt to upload what is left at the end of a training.

The storage's library retries too. During a training, each checkpoint is one attempt.
"""

INCOMPLETE = "_incomplete"
"""File of a checkpoint that is being uploaded or deleted."""

_CHECKPOINT = re.compile(r"checkpoint-[0-9]+(?=/)")
_NOT_SENT = re.compile(r"(^|/)(\.|checkpoint-[0-9]+(/|$))|\.tmp$")


class StoreFolder:
    """A local folder and its copy in the store; names are relative to both.

    Methods raise the errors of the storage's library, and may be called again after one.

    Args:
        folder: the local folder, as `local_folder` returns it.
    """

    def __init__(self, folder: str) -> None:
        import fsspec

        self.folder = Path(folder)
        self.address = str(address_of(folder))
        options = {}
        # fsspec does not create missing local folders by default.
        if self.address.startswith("file:"):
            options["auto_mkdir"] = True
        storage, root = fsspec.url_to_fs(self.address, **options)
        # From here on, names are relative to the address.
        self._files: Any = fsspec.filesystem("dir", path=root, fs=storage)
        self._sent: dict[str, tuple[int, int]] = {}
        """Uploaded files outside of checkpoints, with their modification time and size."""

    def send(self, name: str) -> None:
        """Upload a checkpoint, replacing an older one.

        The modification time of its local folder is set to 0, which marks it as uploaded: any
        change of the folder sets another time.
        """
        folder = self.folder / name
        begun = folder.stat()
        self._clear(name)
        for path in folder.rglob("*"):
            if path.is_file():
                self._put(path)
        self._files.rm_file(f"{name}/{INCOMPLETE}")

        # Not marked as uploaded if it was written again in the meantime.
        if folder.stat().st_mtime_ns == begun.st_mtime_ns:
            os.utime(folder, (0, 0))

    def send_others(self) -> None:
        """Upload changed files outside of checkpoints, except hidden ones."""
        for path in self.folder.rglob("*"):
            name = path.relative_to(self.folder).as_posix()
            if _NOT_SENT.search(name) or not path.is_file():
                continue
            now = path.stat()
            if self._sent.get(name) != (now.st_mtime_ns, now.st_size):
                self._put(path)
                self._sent[name] = (now.st_mtime_ns, now.st_size)

    def discard(self, name: str) -> None:
        """Delete a checkpoint from the store."""
        self._clear(name)
        self._files.rm(name, recursive=True)

    def local_checkpoints(self) -> list[str]:
        """Return the local checkpoints, sorted by step."""
        return [folder.name for folder in checkpoints.list_checkpoints(self.folder)]

    def unsent(self) -> list[str]:
        """Return the local checkpoints that were not uploaded since their last change, by step."""
        names: list[str] = []
        for folder in checkpoints.list_checkpoints(self.folder):
            if folder.stat().st_mtime:
                names.append(folder.name)
        return names

    def stored_checkpoints(self, *, complete: bool = True) -> list[str]:
        """Return the complete checkpoints in the store, or the incomplete ones, sorted by step."""
        files = set(self._find(""))
        names: set[str] = set()
        for file in files:
            match = _CHECKPOINT.match(file)
            if match is None:
                continue
            is_complete = f"{match[0]}/{INCOMPLETE}" not in files
            if is_complete == complete:
                names.add(match[0])
        return sorted(names, key=lambda name: int(name.partition("-")[2]))

    def fetch(self, name: str) -> None:
        """Download a checkpoint, unless the local copy is the same and intact.

        Does nothing if the checkpoint is missing or incomplete in the store.
        """
        folder = self.folder / name
        files = self._find(name)
        if not files or f"{name}/{INCOMPLETE}" in files:
            return

        # Equal manifests list the same files, with which the local ones are compared.
        manifest = f"{name}/_manifest.json"
        own_manifest = self.folder / manifest
        is_same = False
        if manifest in files and own_manifest.is_file():
            is_same = self._files.cat_file(manifest) == own_manifest.read_bytes()
        if is_same and not checkpoints.problems(folder, weights=False):
            return

        with checkpoints.staged_folder(folder) as staging:
            targets = [str(staging / os.path.relpath(file, name)) for file in files]
            self._files.get(files, targets)

        # It need not be uploaded, see `send`.
        os.utime(folder, (0, 0))

    def _find(self, name: str) -> list[str]:
        self._files.invalidate_cache()
        # A name in the store must not lead out of the local folder.
        return [file for file in self._files.find(name) if ".." not in file.split("/")]

    def _put(self, path: Path) -> None:
        self._files.put_file(str(path), path.relative_to(self.folder).as_posix())

    def _clear(self, name: str) -> None:
        """Mark a checkpoint as incomplete, and delete its files."""
        mark = f"{name}/{INCOMPLETE}"
        empty = self.folder / ".empty"
        self.folder.mkdir(parents=True, exist_ok=True)
        empty.touch()

        # Uploading a file also creates its folder, in storages that have folders.
        self._files.put_file(str(empty), mark)
        for file in self._find(name):
            if file != mark:
                self._files.rm_file(file)


@cache
def _opened(folder: str) -> StoreFolder | None:
    """Return the store of a folder; None if the folder has no address."""
    if not address_of(folder):
        return None
    return StoreFolder(folder)


class ObjectStore:
    """Keep the address of `output_dir` up to date with the local folder.

    Does nothing for an `output_dir` that is a folder.

    Args:
        trainer: the Trainer.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._run_dir = ""
        """The folder of checkpoints."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-upload")
        self._job: Future[None] | None = None
        self._is_failing = False
        """Whether the last upload failed, which was reported."""

    @property
    def is_open(self) -> bool:
        """Whether `output_dir` is an address."""
        return _opened(str(self.trainer.args.output_dir)) is not None

    # --- uploads

    def begin_training(self, run_dir: str) -> None:
        """Check that the store can be written to, and finish uploads of an earlier run.

        Collective.

        Args:
            run_dir: the folder of checkpoints, below `output_dir` in a trial of a search.

        Raises:
            ConnectionError: the store cannot be reached, or not be written to; in all processes.
        """
        if self.is_open:
            self._run_dir = run_dir
            self._run_on_ranks(self._prepare, runs=self.trainer.args.process_index == 0)

    def submit(self) -> None:
        """Upload new files, in a thread of the first process."""
        if self.trainer.args.process_index == 0 and self.is_open:
            # A job that has not started would upload the same files.
            if self._job is not None:
                self._job.cancel()
            self._job = self._thread.submit(self._send_or_warn)

    def finish(self) -> None:
        """Upload the remaining files, and wait for all uploads; collective.

        Raises:
            ConnectionError: an upload failed; in all processes.
        """
        if self.is_open:
            self._raise_in_all(self._send_rest())

    def written(self) -> None:
        """Upload files that were written to `output_dir` outside of a training.

        In a training, `finish` uploads them.

        Raises:
            ConnectionError: the upload failed.
        """
        if not self.trainer.is_in_train:
            problem = self._send_rest()
            if problem:
                raise ConnectionError(problem)

    def leave(self) -> None:
        """Wait for uploads of the thread, as at the end of a training that failed."""
        if self._job is not None:
            self._job.result()

    def _send_or_warn(self) -> None:
        problem = self._try_to_send()
        if problem and not self._is_failing:
            logger.warning("%s Training continues, and the next upload tries again.", problem)
        self._is_failing = bool(problem)

    def _send_rest(self) -> str:
        """Upload what is left in this thread, with retries; return the last problem."""
        problem = ""
        if self.trainer.args.process_index > 0 or not self.is_open:
            return problem
        self.leave()
        for pause in PAUSES:
            time.sleep(pause)
            problem = self._try_to_send()
            if not problem:
                break
        return problem

    def _try_to_send(self) -> str:
        limit = self.trainer.args.save_total_limit or 0
        return self._attempt(partial(self._send, limit))

    def _send(self, limit: int) -> None:
        """Upload checkpoints, the newest first, and then other files.

        At most `limit` checkpoints stay in the store, or all if it is 0.
        """
        output_dir = str(self.trainer.args.output_dir)
        store = _opened(self._run_dir or output_dir)
        output_store = _opened(output_dir)
        assert store is not None
        assert output_store is not None
        rotate = self.trainer._checkpoint_saver.rotate

        rotate(limit)
        while True:
            unsent = store.unsent()
            if not unsent:
                break
            store.send(unsent[-1])
            rotate(limit)

        # All are in the store now, so only the newest has to stay on the local disk.
        rotate(limit or 1)
        output_store.send_others()

        if limit:
            stored = store.stored_checkpoints()
            local = store.local_checkpoints()
            only_stored = [name for name in stored if name not in local]
            for name in only_stored[: max(len(stored) - limit, 0)]:
                store.discard(name)

    def _prepare(self) -> None:
        store = _opened(self._run_dir)
        assert store is not None

        # Write, list and delete a file, so that missing permissions raise before the training.
        store.discard(".probe")
        self._send(0)

        # Remove partial uploads of a machine that was terminated.
        for name in store.stored_checkpoints(complete=False):
            store.discard(name)
        stored = store.stored_checkpoints()
        for name in store.local_checkpoints():
            if name not in stored:
                logger.warning(
                    "Removing %s: %s does not have it any more.",
                    store.folder / name,
                    store.address,
                )
                checkpoints.discard(store.folder / name)

    # --- downloads

    def fetch(self, path: str | os.PathLike[str]) -> str:
        """Download a checkpoint if it is an address, and return its folder; collective.

        Raises:
            ValueError: it is an address that cannot be used.
        """
        local = os.path.abspath(local_folder(path))
        run_dir, name = os.path.split(local)
        store = _opened(run_dir)
        if store is None:
            return os.fspath(path)
        self._run_on_ranks(
            partial(store.fetch, name), runs=self.trainer.args.local_process_index == 0
        )
        if os.path.isdir(local):
            return local
        return os.fspath(path)

    def fetch_newest(self, *, weights: bool = True) -> None:
        """Download the newest intact checkpoint of `output_dir` to each machine; collective.

        Args:
            weights: as for `problems`.
        """
        args = self.trainer.args
        store = _opened(str(args.output_dir))
        if store is None:
            return
        names: list[str] = []
        self._run_on_ranks(
            lambda: names.extend(store.stored_checkpoints()), runs=args.process_index == 0
        )

        # A checkpoint has to be intact on every machine; otherwise all try the one before.
        for name in reversed(broadcast_from_rank_zero(names, args.world_size)):
            first_of_machine = args.local_process_index == 0
            self._run_on_ranks(partial(store.fetch, name), runs=first_of_machine)
            damaged = first_of_machine and bool(
                checkpoints.problems(store.folder / name, weights=weights)
            )
            if not any(gather_objects(damaged)):
                return

    # --- several processes

    def _run_on_ranks(self, job: Callable[[], None], *, runs: bool) -> None:
        """Run a job in some processes, and raise its error in all.

        Args:
            job: reads or writes the store.
            runs: whether this process runs it.
        """
        problem = ""
        if runs:
            problem = self._attempt(job)
        self._raise_in_all(problem)

    def _raise_in_all(self, problem: str) -> None:
        for problem_of_rank in gather_objects(problem):
            if problem_of_rank:
                raise ConnectionError(problem_of_rank)

    def _attempt(self, job: Callable[[], None]) -> str:
        """Run a job, and return its error with a remedy; an empty text without one."""
        try:
            job()
        except Exception as error:
            folder = str(self.trainer.args.output_dir)
            return (
                f"{address_of(folder) or 'The store'} could not be read or written "
                f"({describe(error)}). {folder} keeps what it lacks. Check bucket, network, and "
                "credentials that may list, read, write and delete there; trainer.save_state() "
                "sends the rest, as does the next start."
            )
        return ""
