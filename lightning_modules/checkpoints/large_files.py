"""Large files, written past the cache of the system and hashed on the way; nothing has to read them for a checksum.

The pages of the cache take more processor time than all else about a checkpoint, and push out the data that a training
reads; and before a checkpoint gets its name its bytes have to be on the disk anyway.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import Self

from ..common.local_paths import StrPath
from ..common.nested import leaves
from ..common.torch_files import on_host, save_torch

if TYPE_CHECKING:
    from torch import Tensor

LARGE = 4 << 20  # bytes; smaller files are written and flushed in less time than a thread takes

_BLOCK = 8 << 20  # bytes: a multiple of the unit in which any disk reads and writes
_PAST_THE_CACHE: int = getattr(os, "O_DIRECT", 0)  # on Linux


class WrittenFiles:
    """Checksums of files as this process wrote them; whoever has changed one since then is noticed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Any, str]] = {}

    def note(self, path: StrPath, checksum: str) -> None:
        """Remember the checksum of a file that was just written."""
        self._known[Path(path)] = _stamp(Path(path)), checksum

    def checksum(self, path: StrPath) -> str | None:
        """Return the checksum of a file, in hexadecimal digits; None if it has to be read."""
        stamp, checksum = self._known.get(Path(path), (None, None))
        return checksum if stamp == _stamp(Path(path)) else None


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def write_torch(values: Any, path: StrPath, written: WrittenFiles) -> None:
    """As `save_torch`, but where there are many values, they are written past the cache.

    Args:
        values: tensors and plain values in dicts, lists and tuples.
        path: the file.
        written: is told the checksum.

    Raises:
        OSError: the disk refused.
    """
    import torch

    if size_of(values) < LARGE:
        save_torch(values, path)
        return
    with LargeFile(path) as file:
        torch.save(on_host(values), cast("Any", file))  # it asks for no more than `write` and `flush`
    written.note(path, file.checksum)


def size_of(values: Any) -> int:
    """Return the size of all tensors in bytes; memory that several share counts for each."""
    import torch

    return sum(leaf.nbytes for leaf in leaves(values) if isinstance(leaf, torch.Tensor))


_KINDS = {
    **{"bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64"},
    **{"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"},
}
"""What the headers of safetensors call the types of torch; those of fewer than eight bits are left to the library."""


def write_safetensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str], written: WrittenFiles
) -> None:
    """As `safetensors.torch.save_file`, but where there is much to write, it is written past the cache.

    The format is https://huggingface.co/docs/safetensors: the size of the header, the header, and the tensors as they
    lie in memory, the widest types first, so that each begins at a multiple of its own width.

    Args:
        tensors: contiguous, no two of them in the same memory.
        path: the file.
        metadata: for the header.
        written: is told the checksum.

    Raises:
        OSError: the disk refused.
        SafetensorError: the same, of a small file.
    """
    import torch
    from safetensors.torch import save_file

    kinds = {name: _KINDS.get(str(tensor.dtype).removeprefix("torch.")) for name, tensor in tensors.items()}
    plain = all(type(one) is torch.Tensor and one.layout is torch.strided for one in tensors.values())
    if sys.byteorder != "little" or not plain or None in kinds.values() or size_of(tensors) < LARGE:
        save_file(dict(tensors), path, metadata)
        return
    header: dict[str, Any] = {"__metadata__": metadata}
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    end = 0
    for name in order:
        begin, end = end, end + tensors[name].nbytes
        header[name] = {"dtype": kinds[name], "shape": list(tensors[name].shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with LargeFile(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            if tensors[name].numel():
                file.write(tensors[name].cpu().reshape(-1).view(torch.uint8).numpy().data)
    written.note(path, file.checksum)


class LargeFile:
    """As a file that `open(path, "wb")` returns, for few large writes: a block goes to the disk while one is filled.

    Where the file system, or the system, knows nothing of writing past the cache, the blocks go through it.

    Args:
        path: made anew.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: StrPath) -> None:
        from xxhash import xxh3_64

        self.name = os.fspath(path)
        self._hash = xxh3_64()
        self._file, self._is_direct = _open(self.name)
        self._blocks = [memoryview(mmap.mmap(-1, _BLOCK)) for _ in range(2)]  # begin where a disk wants blocks to
        self._filled = 0  # of the first block
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
            count = min(len(rest), _BLOCK - self._filled)
            self._blocks[0][self._filled : self._filled + count] = rest[:count]
            self._filled += count
            rest = rest[count:]
            if self._filled == _BLOCK:
                self._send()
        return size

    def flush(self) -> None:
        """Do nothing: what is in a block is written when that is full, or the file is closed."""

    def close(self) -> None:
        """Write the rest.

        Raises:
            OSError: the disk refused something.
        """
        with self._file:
            self._send()
            self._wait()

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
        self._file.close()
        if self._error is not None and isinstance(error, Exception):
            raise self._error from error  # torch goes on after a write that failed, into an error of its own

    def _send(self) -> None:
        self._wait()
        block, self._filled = self._blocks[0][: self._filled], 0
        self._blocks.reverse()
        self._sending = Thread(target=self._put, args=(block,), name="checkpoint-disk")
        self._sending.start()
        self._hash.update(block)  # here, as the disk is what is waited for

    def _wait(self) -> None:
        """Wait for the block that is on its way."""
        if self._sending is not None:
            self._sending.join()
        if self._error is not None:
            raise self._error

    def _put(self, block: memoryview) -> None:
        try:
            while block:
                block = block[self._put_some(block) :]
        except BaseException as error:  # handed over to who writes
            self._error = error

    def _put_some(self, block: memoryview) -> int:
        if self._is_direct and len(block) < _BLOCK:  # the end of the file, or of what the disk took at once
            self._go_through_cache()
        try:
            return self._file.write(block) or 0
        except OSError as error:
            if self._is_direct and error.errno == errno.EINVAL:
                self._go_through_cache()
                return 0
            raise type(error)(error.errno, f"could not be written: {error.strerror}", self.name) from error

    def _go_through_cache(self) -> None:
        import fcntl

        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags & ~_PAST_THE_CACHE)
        self._is_direct = False


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
