"""Write weights and states to files that are hashed while they are written, not read again."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..common.local_paths import StrPath
from ..common.nested import leaves
from ..common.torch_files import on_host, writing_to

if TYPE_CHECKING:
    from torch import Tensor


class WrittenFiles:
    """Checksums of files as this process wrote them; those of files changed since are dropped."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, str]] = {}

    def note(self, path: StrPath, checksum: str) -> None:
        """Store the checksum of a file that was just written."""
        self._known[os.fspath(path)] = _stamp(path), checksum

    def checksum(self, path: StrPath) -> str | None:
        """Return the checksum of a file, in hexadecimal digits; None if it has to be read."""
        stamp, checksum = self._known.get(os.fspath(path), (None, None))
        return checksum if stamp == _stamp(path) else None


def _stamp(path: StrPath) -> tuple[int, int, int]:
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


class _HashedFile:
    """Pass writes on to an open binary file, and hash them."""

    def __init__(self, file: Any) -> None:
        from xxhash import xxh3_64

        self._file, self._hash = file, xxh3_64()

    def write(self, data: bytes | memoryview) -> int:
        self._hash.update(data)
        self._file.write(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()

    @property
    def checksum(self) -> str:
        return self._hash.hexdigest()


def write_pieces(pieces: Iterable[bytes], path: StrPath, written: WrittenFiles) -> None:
    """Write bytes to a file.

    Args:
        pieces: the content, in parts.
        path: the file.
        written: receives the checksum.

    Raises:
        OSError: the disk refused.
    """
    with writing_to(path) as file:
        hashed = _HashedFile(file)
        for piece in pieces:
            hashed.write(piece)
    written.note(path, hashed.checksum)


def write_torch(values: Any, path: StrPath, written: WrittenFiles) -> None:
    """As `save_torch`, but the file is hashed while it is written.

    Args:
        values: tensors and plain values in dicts, lists and tuples.
        path: the file.
        written: receives the checksum.

    Raises:
        OSError: the disk refused.
    """
    import torch

    with writing_to(path) as file:
        hashed = _HashedFile(file)
        torch.save(on_host(values), cast("Any", hashed))  # needs only `write` and `flush`
    written.note(path, hashed.checksum)


def size_of(values: Any) -> int:
    """Return the size of all tensors in bytes; shared memory counts for each."""
    import torch

    return sum(leaf.nbytes for leaf in leaves(values) if isinstance(leaf, torch.Tensor))


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
    import torch
    from safetensors.torch import save_file

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
    with writing_to(path) as file:
        hashed = _HashedFile(file)
        hashed.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            if tensors[name].numel():
                hashed.write(tensors[name].cpu().reshape(-1).view(torch.uint8).numpy().data)
    written.note(path, hashed.checksum)
