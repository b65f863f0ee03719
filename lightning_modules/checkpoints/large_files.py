"""Write weights and states to large files that are hashed while they are written, not read again."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..common.local_paths import StrPath
from ..common.nested import leaves
from ..common.torch_files import on_host, save_torch
from .block_file import BlockFile

if TYPE_CHECKING:
    from torch import Tensor

LARGE = 4 << 20  # bytes; smaller files are written and flushed in less time than a thread takes


class WrittenFiles:
    """Checksums of files as this process wrote them; those of files changed since are dropped.

    Args:
        flushed: flush the files to the disk before the checkpoint is complete; else the caller flushes them later.
    """

    def __init__(self, *, flushed: bool = True) -> None:
        self.flushed = flushed
        self._known: dict[Path, tuple[Any, str]] = {}

    def note(self, path: StrPath, checksum: str) -> None:
        """Store the checksum of a file that was just written."""
        self._known[Path(path)] = _stamp(Path(path)), checksum

    def checksum(self, path: StrPath) -> str | None:
        """Return the checksum of a file, in hexadecimal digits; None if it has to be read."""
        stamp, checksum = self._known.get(Path(path), (None, None))
        return checksum if stamp == _stamp(Path(path)) else None


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def write_torch(values: Any, path: StrPath, written: WrittenFiles) -> None:
    """As `save_torch`, but large files are hashed while they are written.

    Args:
        values: tensors and plain values in dicts, lists and tuples.
        path: the file.
        written: receives the checksum.

    Raises:
        OSError: the disk refused.
    """
    import torch

    if size_of(values) < LARGE:
        save_torch(values, path)
        return
    with BlockFile(path, past_the_cache=written.flushed) as file:
        torch.save(on_host(values), cast("Any", file))  # needs only `write` and `flush`
    written.note(path, file.checksum)


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
    """As `safetensors.torch.save_file`, but large files are hashed while they are written.

    The format is https://huggingface.co/docs/safetensors: the size of the header, the header, and the raw tensors, the
    widest dtypes first, so that each is aligned to its width.

    Args:
        tensors: contiguous, no two of them in the same memory.
        path: the file.
        metadata: for the header.
        written: receives the checksum.

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
    with BlockFile(path, past_the_cache=written.flushed) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            if tensors[name].numel():
                file.write(tensors[name].cpu().reshape(-1).view(torch.uint8).numpy().data)
    written.note(path, file.checksum)
