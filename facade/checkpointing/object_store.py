"""Address such as `s3://bucket/run` as `output_dir`: uploads in the background, and checkpoints to resume from.

The training writes into a folder of this machine; fsspec takes the files from there to the store. A checkpoint in the
store holds the file `_incomplete` from before its first file until after its last one, and again while it is deleted:
what a killed process leaves is never taken for a checkpoint. Those of other writers lack that file, and are taken.
"""

from __future__ import annotations

import logging
import os
import re
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...lightning_modules import checkpoints
from ...lightning_modules.common.collectives import gather_objects
from ...lightning_modules.common.local_paths import address_of, local_folder
from ...lightning_modules.common.weak_attribute import WeakAttribute
from ..distributed.collectives import from_first_process
from ..hub.errors import describe

if TYPE_CHECKING:
    from .. import Trainer
    from .saving import CheckpointSaver

logger = logging.getLogger(__name__)

PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 0.0)
"""Seconds after attempts to send, besides those of the storage's library; then the next checkpoint tries again."""

INCOMPLETE = "_incomplete"
"""File of a checkpoint that is being uploaded or deleted."""

_CHECKPOINT = re.compile(r"checkpoint-[0-9]+(?=/)")
_NOT_SENT = re.compile(r"(^|/)(\.|checkpoint-[0-9]+(/|$))|\.tmp$")


class StoreFolder:
    """Files of a local folder at their address; names are relative to both.

    Methods raise what the library of the storage raises, and may be called again after that.

    Args:
        folder: the local folder, as `local_folder` returns it.
    """

    def __init__(self, folder: str) -> None:
        import fsspec

        self.folder, self.address = Path(folder), str(address_of(folder))
        options = {"auto_mkdir": True} if self.address.startswith("file:") else {}
        storage, root = fsspec.url_to_fs(self.address, **options)
        self._files: Any = fsspec.filesystem("dir", path=root, fs=storage)
        self._sent: dict[str, tuple[int, int]] = {}  # files outside of checkpoints: time of change and size

    def send(self, name: str) -> None:
        """Upload a checkpoint in place of what is there; its time of change is 0 from then on, until it changes."""
        folder = self.folder / name
        begun = folder.stat()
        self._clear(name)
        for path in filter(Path.is_file, folder.rglob("*")):
            self._put(path)
        self._files.rm_file(f"{name}/{INCOMPLETE}")
        if folder.stat().st_mtime_ns == begun.st_mtime_ns:  # else it was written anew, and is sent again
            os.utime(folder, (0, 0))

    def send_others(self) -> None:
        """Upload the files outside of checkpoints that have changed; hidden ones stay here."""
        for path in filter(Path.is_file, self.folder.rglob("*")):
            name, now = path.relative_to(self.folder).as_posix(), path.stat()
            if not _NOT_SENT.search(name) and self._sent.get(name) != (now.st_mtime_ns, now.st_size):
                self._put(path)
                self._sent[name] = now.st_mtime_ns, now.st_size

    def discard(self, name: str) -> None:
        """Delete a checkpoint from the store."""
        self._clear(name)
        self._files.rm(name, recursive=True)

    def here(self, *, unsent: bool = False) -> list[str]:
        """Return the checkpoints on this machine by step: all, or those that are not in the store as they are now."""
        return [one.name for one in checkpoints.list_checkpoints(self.folder) if not unsent or one.stat().st_mtime]

    def there(self, *, complete: bool = True) -> list[str]:
        """Return the checkpoints in the store by step: the complete ones, or the others."""
        files = self._find("")
        names = {found[0] for found in map(_CHECKPOINT.match, files) if found}
        found = [one for one in names if complete != (f"{one}/{INCOMPLETE}" in files)]
        return sorted(found, key=lambda one: int(one.partition("-")[2]))

    def fetch(self, name: str) -> None:
        """Download a checkpoint if the store has all of it, unless the local copy is the same and intact."""
        files, folder, manifest = self._find(name), self.folder / name, f"{name}/_manifest.json"
        if not files or f"{name}/{INCOMPLETE}" in files:
            return
        same = manifest in files and (self.folder / manifest).is_file()
        same = same and self._files.cat_file(manifest) == (self.folder / manifest).read_bytes()
        if not same or checkpoints.problems(folder, weights=False):
            with checkpoints.staged_folder(folder) as stage:
                self._files.get(files, [str(stage / os.path.relpath(file, name)) for file in files])
            os.utime(folder, (0, 0))

    def _find(self, name: str) -> list[str]:
        self._files.invalidate_cache()
        return [file for file in self._files.find(name) if ".." not in file.split("/")]

    def _put(self, path: Path) -> None:
        self._files.put_file(str(path), path.relative_to(self.folder).as_posix())

    def _clear(self, name: str) -> None:
        """Mark a checkpoint as incomplete, and delete its files."""
        empty = self.folder / ".empty"
        self.folder.mkdir(parents=True, exist_ok=True)
        empty.touch()
        self._files.put_file(str(empty), f"{name}/{INCOMPLETE}")  # makes folders where the storage has such
        for file in {*self._find(name)} - {f"{name}/{INCOMPLETE}"}:
            self._files.rm_file(file)


@cache
def _opened(folder: str) -> Any:
    """Return the `StoreFolder` of a folder that has an address, else None."""
    return StoreFolder(folder) if address_of(folder) else None


class ObjectStore:
    """Keep the address of `output_dir` up to date with the local folder; does nothing for other folders.

    Args:
        host: the Trainer.
    """

    host = WeakAttribute["Trainer"]()

    def __init__(self, host: Trainer) -> None:
        self.host = host
        self._run_dir = ""  # folder of checkpoints
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-upload")
        self._job: Future[None] | None = None
        self._problem = ""
        self._saver: Callable[[], CheckpointSaver | None] = lambda: None

    def serve(self, saver: CheckpointSaver) -> None:
        """Let `saver` remove the checkpoints that are sent."""
        self._saver = weakref.ref(saver)

    # --- a training

    @property
    def is_open(self) -> bool:
        """Return whether `output_dir` is an address."""
        return _opened(str(self.host.args.output_dir)) is not None

    def begin_training(self, run_dir: str) -> None:
        """Check that the store can be written to, and finish what an earlier run has left there or here; collective.

        Args:
            run_dir: the folder of checkpoints, below `output_dir` in a trial of a search.

        Raises:
            ConnectionError: the store cannot be reached, or not be written to; in all processes.
        """
        if self.is_open:
            self._run_dir = run_dir
            self._together(self._prepare)

    def submit(self) -> None:
        """Send what is new, in a thread of the first process."""
        if self.host.args.process_index == 0 and self.is_open:
            if self._job is not None:
                self._job.cancel()  # it has not begun
            self._job = self._thread.submit(self._send_until_there)

    def finish(self) -> None:
        """Send the rest, and wait for it; collective.

        Raises:
            ConnectionError: something could not be sent; in all processes.
        """
        self._together(lambda: self.submit() or self.wait())

    def written(self) -> None:
        """Send what was written to `output_dir`; in a training its end does.

        Raises:
            ConnectionError: it could not be sent.
        """
        if not self.host.is_in_train and (problem := self.submit() or self.wait()):
            raise ConnectionError(problem)

    def wait(self) -> str:
        """Wait for uploads; return the last problem."""
        return self._job.result() or self._problem if self._job else ""

    def _send_until_there(self) -> None:
        warned, send = bool(self._problem), partial(self._send, self.host.args.save_total_limit or 0)
        for pause in PAUSES:
            self._problem = self._tried(send)
            if not self._problem:
                return
            time.sleep(pause)
        if not warned:
            logger.warning("%s Training goes on, and the next checkpoint tries again.", self._problem)

    def _send(self, limit: int) -> Any:
        """Send checkpoints, the newest first, and other files; keep so many checkpoints there, unless it is 0."""
        store = _opened(self._run_dir or str(self.host.args.output_dir))
        self._rotate(limit)
        while waiting := store.here(unsent=True):
            store.send(waiting[-1])
            self._rotate(limit)
        self._rotate(limit or 1)  # all are in the store
        _opened(str(self.host.args.output_dir)).send_others()
        there = store.there() if limit else []
        for one in [one for one in there if one not in store.here()][: max(len(there) - limit, 0)]:
            store.discard(one)

    def _rotate(self, limit: int) -> None:
        saver = self._saver()
        if saver is not None:
            saver.rotate(limit)

    def _prepare(self) -> None:
        store = _opened(self._run_dir)
        store.discard(".probe")  # what may not be written, listed or deleted raises now
        self._send(0)
        for one in store.there(complete=False):  # of a machine that has gone
            store.discard(one)
        for one in {*store.here()} - {*store.there()}:
            logger.warning("%s is removed, as %s does not have it any more.", store.folder / one, store.address)
            checkpoints.discard(store.folder / one)

    # --- several processes

    def localized(self, wanted: Any, *, weights: bool = True) -> Any:
        """Return `resume_from_checkpoint` with a folder in place of an address, after its download; collective.

        Args:
            wanted: a folder or an address; True for the newest intact one, which each machine has then.
            weights: as for `problems`.

        Raises:
            ValueError: it is an address that cannot be used.
        """
        args, path = self.host.args, os.path.join(str(self.host.args.output_dir), "")
        if isinstance(wanted, (str, os.PathLike)):
            path = os.path.abspath(local_folder(wanted))
        store, names = _opened(os.path.dirname(path)), [] if wanted is True else [os.path.basename(path)]
        if not wanted or store is None:
            return wanted
        if wanted is True:
            self._together(lambda: names.extend(store.there()))
        for one in reversed(from_first_process(names, args.world_size)):
            self._together(partial(store.fetch, one), everywhere=True)
            found = store.folder / one
            if not any(gather_objects(args.local_process_index == 0 and checkpoints.problems(found, weights=weights))):
                break
        return path if wanted is not True and os.path.isdir(path) else wanted

    def _together(self, job: Callable[[], Any], everywhere: bool = False) -> None:
        """Run a job in the first process, or in the first one of each machine, and raise its error in all."""
        args = self.host.args
        if not everywhere and not self.is_open:
            return
        turn = (args.local_process_index if everywhere else args.process_index) == 0
        if said := [one for one in gather_objects(self._tried(job) if turn else "") if one]:
            raise ConnectionError(said[0])

    def _tried(self, job: Callable[[], Any]) -> str:
        """Run a job, and return what it returns, or its error with a remedy."""
        try:
            return job() or ""
        except Exception as error:
            folder = str(self.host.args.output_dir)
            return (
                f"{address_of(folder) or 'The store'} could not be read or written ({describe(error)}). {folder} keeps "
                "what it lacks. See to bucket, network, and credentials that may list, read, write and delete there; "
                "trainer.save_state() sends the rest, as does the next start."
            )
