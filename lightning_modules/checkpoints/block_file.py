"""A large file that is hashed on its way to the disk.

What has to be there at the end goes past the cache of the system: its pages take more processor time than all else
about a checkpoint, and push out the data that a training reads. What may get there later goes through the cache while
that is quick. Memory at hand is several times as fast as a disk; memory that a virtual machine has to get from its host
first, or that is full of what waits for the disk, is slower than one.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from threading import Thread
from types import TracebackType
from typing import Any

from typing_extensions import Self

from ..common.local_paths import StrPath

_BLOCK = 8 << 20  # bytes: a multiple of the unit in which any disk reads and writes
_TELLING = 1 << 20  # bytes that are enough to tell how fast a way is
_USUAL_DISK = 1e-9  # seconds a byte: what is expected of a disk before anything was written to it
_PAST_THE_CACHE: int = getattr(os, "O_DIRECT", 0)  # on Linux


class BlockFile:
    """As a file that `open(path, "wb")` returns, for few large writes.

    Past the cache go blocks of one size, each while the next one is filled. Where the file system, or the system, knows
    nothing of that way, they go through the cache.

    Args:
        path: made anew.
        past_the_cache: all of it; else only from where the cache has become slower than a disk.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: StrPath, *, past_the_cache: bool = True) -> None:
        from xxhash import xxh3_64

        self.name = os.fspath(path)
        self._hash = xxh3_64()
        self._descriptor = _Descriptor(self.name, past_the_cache)
        self._in_blocks = past_the_cache
        self._size = 0  # of all that was taken
        self._blocks = [memoryview(mmap.mmap(-1, _BLOCK)) for _ in range(2)]  # begin where a disk wants blocks to
        self._begin = self._filled = 0  # of the first block: where it begins after a change of ways, and ends
        self._sending: Thread | None = None
        self._error: BaseException | None = None

    @property
    def checksum(self) -> str:
        """That of all that was written, in hexadecimal digits; complete when the file is closed."""
        return self._hash.hexdigest()

    def write(self, data: bytes | memoryview) -> int:
        """Take bytes.

        Raises:
            OSError: the disk refused them, or those before.
        """
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            count = self._fill(rest) if self._in_blocks else self._pass_on(rest[:_BLOCK])
            self._size += count
            rest = rest[count:]
        return size

    def flush(self) -> None:
        """Do nothing: what is in a block is written when that is full, or the file is closed."""

    def close(self) -> None:
        """Write the rest.

        Raises:
            OSError: the disk refused something.
        """
        try:
            self._send()
            self._wait()
        finally:
            self._descriptor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        if self._sending is not None:
            self._sending.join()
        self._descriptor.close()
        if self._error is not None and isinstance(error, Exception):
            raise self._error from error  # torch goes on after a write that failed, into an error of its own

    def _pass_on(self, data: memoryview) -> int:
        """Write at once; see to it that the blocks begin where a disk wants them to when it is their turn."""
        self._put(data)
        self._wait()
        self._hash.update(data)
        if self._descriptor.is_quicker_past_the_cache:
            self._in_blocks = True
            self._begin = self._filled = (self._size + len(data)) % _BLOCK
        return len(data)

    def _fill(self, data: memoryview) -> int:
        count = min(len(data), _BLOCK - self._filled)
        self._blocks[0][self._filled : self._filled + count] = data[:count]
        self._filled += count
        if self._filled == _BLOCK:
            self._send()
        return count

    def _send(self) -> None:
        self._wait()
        block, self._begin, self._filled = self._blocks[0][self._begin : self._filled], 0, 0
        self._blocks.reverse()
        self._sending = Thread(target=self._put, args=(block,), name="checkpoint-disk")
        self._sending.start()
        self._hash.update(block)  # here, as the disk is what is waited for

    def _wait(self) -> None:
        """Wait for the block that is on its way; raise what became of it, or of one before it."""
        if self._sending is not None:
            self._sending.join()
        if self._error is not None:
            raise self._error

    def _put(self, block: memoryview) -> None:
        try:
            self._descriptor.put(block)
        except BaseException as error:  # handed over to who writes
            self._error = error


class _Descriptor:
    """A file that is open for writing, through the cache and past it.

    Args:
        name: made anew.
        past_the_cache: always, as long as the system can; else where it took less time lately.
    """

    def __init__(self, name: str, past_the_cache: bool) -> None:
        self._name = name
        self._always = past_the_cache
        self._seconds = {False: 0.0, True: _USUAL_DISK}  # a byte, lately: through the cache and past it
        self._file, self._is_past = _open(name)
        self._can = self._is_past

    def put(self, block: memoryview) -> None:
        """Write a block: past the cache only one of full size, at a place and from memory that a disk takes.

        Raises:
            OSError: the disk refused it.
        """
        size, begin = len(block), time.perf_counter()
        self._go(size == _BLOCK and self.is_quicker_past_the_cache)
        while block:
            block = block[self._put_some(block) :]
        if size >= _TELLING:
            self._seconds[self._is_past] = (time.perf_counter() - begin) / size

    @property
    def is_quicker_past_the_cache(self) -> bool:
        """Return whether the next block is to go past the cache, and can."""
        return self._can and (self._always or self._seconds[True] < self._seconds[False])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _put_some(self, block: memoryview) -> int:
        if self._is_past and len(block) < _BLOCK:  # the rest of what the disk took in part
            self._can = False
            self._go(False)
        try:
            return self._file.write(block) or 0
        except OSError as error:
            if self._is_past and error.errno == errno.EINVAL:
                self._can = False
                self._go(False)
                return 0
            raise type(error)(error.errno, f"could not be written: {error.strerror}", self._name) from error

    def _go(self, past: bool) -> None:
        """Take this way from now on."""
        if past == self._is_past:
            return
        import fcntl

        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags | _PAST_THE_CACHE if past else flags & ~_PAST_THE_CACHE)
        self._is_past = past


def _open(name: str) -> tuple[Any, bool]:
    """Open a file for writing, past the cache if the file system can do so; also return whether it does."""
    if _PAST_THE_CACHE:
        try:
            return open(name, "wb", buffering=0, opener=_open_past_the_cache), True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    return open(name, "wb", buffering=0), False


def _open_past_the_cache(name: str, flags: int) -> int:
    return os.open(name, flags | _PAST_THE_CACHE, 0o666)
