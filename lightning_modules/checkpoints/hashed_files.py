"""Write weights and states to files that are hashed while they are written, not read again."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from xxhash import xxh3_64

from ..common.local_paths import StrPath
from ..common.torch_files import on_host, writing_to


class WrittenFiles:
    """Checksums of files as this process wrote them; those of files changed since are dropped."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, str]] = {}

    def note(self, path: StrPath, checksum: str) -> None:
        """Store the checksum of a file that was just written."""
        self._known[os.fspath(path)] = _stamp(os.stat(path)), checksum

    def checksum(self, path: StrPath, found: os.stat_result) -> str | None:
        """Return the checksum of a file, in hexadecimal digits; None if it has to be read.

        Args:
            path: the file.
            found: its state now.
        """
        stamp, checksum = self._known.get(os.fspath(path), (None, None))
        return checksum if stamp == _stamp(found) else None


def _stamp(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


class _HashedFile(io.FileIO):
    """Hash what is written to a new file."""

    def __init__(self, path: StrPath) -> None:
        super().__init__(path, "wb")
        self.hash = xxh3_64()

    def write(self, data: Any) -> int:
        count = super().write(data)
        self.hash.update(memoryview(data)[:count])
        return count


@contextmanager
def _hashing(path: StrPath, written: WrittenFiles) -> Iterator[IO[bytes]]:
    """Open a new file, whose small writes are joined, and note its checksum at the end of the block."""
    with writing_to(path):
        raw = _HashedFile(path)
        with io.BufferedWriter(raw, _BUFFER) as file:
            yield file
    written.note(path, raw.hash.hexdigest())


_BUFFER = 1 << 17  # bytes


def write_pieces(pieces: Iterable[bytes], path: StrPath, written: WrittenFiles) -> None:
    """Write bytes to a file.

    Args:
        pieces: the content, in parts.
        path: the file.
        written: receives the checksum.

    Raises:
        OSError: the disk refused.
    """
    with _hashing(path, written) as file:
        file.writelines(pieces)


def write_torch(values: Any, path: StrPath, written: WrittenFiles) -> None:
    """As `save_torch`, but the file is hashed while it is written.

    Args:
        values: tensors and plain values in dicts, lists and tuples.
        path: the file.
        written: receives the checksum.

    Raises:
        OSError: the disk refused.
    """
    with _hashing(path, written) as file:
        torch.save(on_host(values), file)


_KINDS = {
    **{"bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64"},
    **{"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"},
}
"""Names of torch's dtypes in headers of safetensors; dtypes of fewer than eight bits are left to the library."""


def write_safetensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str], written: WrittenFiles
) -> None:
    """As `safetensors.torch.save_file`, but the file is hashed while it is written.

    The format is https://huggingface.co/docs/safetensors: the size of the header, the header, and the raw tensors, the
    widest dtypes first, so that each is aligned to its width.

    Args:
        tensors: contiguous, no two of them in the same memory.
        path: the file.
        metadata: for the header.
        written: receives the checksum.

    Raises:
        OSError: the disk refused.
        SafetensorError: the same, of a file that the library writes.
    """
    kinds = {name: _KINDS.get(str(tensor.dtype).removeprefix("torch.")) for name, tensor in tensors.items()}
    plain = all(type(one) is torch.Tensor and one.layout is torch.strided for one in tensors.values())
    if sys.byteorder != "little" or not plain or None in kinds.values():
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
    with _hashing(path, written) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            if tensors[name].numel():
                file.write(tensors[name].cpu().reshape(-1).view(torch.uint8).numpy().data)
