"""Write weights and states to files that are hashed while they are written, not read again."""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from xxhash import xxh3_64

from ..common.local_paths import StrPath
from ..common.torch_files import on_host, writing_to
from .tied_weights import identity


class WrittenFiles(dict[str, tuple[Any, str]]):
    """Checksums of files as this process wrote them, by path; those of files changed since are dropped."""

    def checksum(self, path: StrPath, found: os.stat_result) -> str | None:
        """Return the checksum of a file, in hexadecimal digits; None if it has to be read.

        Args:
            path: the file.
            found: its state now.
        """
        stamp, checksum = self.get(os.fspath(path), (None, None))
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
    written[os.fspath(path)] = _stamp(os.stat(path)), raw.hash.hexdigest()


_BUFFER = 1 << 17  # bytes


def write_bytes(content: bytes, path: StrPath, written: WrittenFiles) -> None:
    """Write bytes to a file.

    Args:
        content: all of the file.
        path: the file.
        written: receives the checksum.

    Raises:
        OSError: the disk refused.
    """
    with _hashing(path, written) as file:
        file.write(content)


_DTYPES: dict[torch.dtype, tuple[str, type]] = {
    **{torch.bool: ("BOOL", torch.BoolStorage), torch.uint8: ("U8", torch.ByteStorage)},
    **{torch.int8: ("I8", torch.CharStorage), torch.int16: ("I16", torch.ShortStorage)},
    **{torch.int32: ("I32", torch.IntStorage), torch.int64: ("I64", torch.LongStorage)},
    **{torch.float16: ("F16", torch.HalfStorage), torch.bfloat16: ("BF16", torch.BFloat16Storage)},
    **{torch.float32: ("F32", torch.FloatStorage), torch.float64: ("F64", torch.DoubleStorage)},
}
"""Name in headers of safetensors, and class in files of torch; other dtypes are left to the libraries."""

_rebuild_tensor: Any = torch.empty(0, device="cpu").__reduce_ex__(2)[0]


class Pickled(pickle.Pickler):
    """Values as `torch.save` pickles them, and the tensors apart, so that copies may be written in their place.

    torch calls a slow function for each number and string, and another one for each tensor.

    Args:
        values: tensors and plain values in dicts, lists and tuples.
        copy: copies a tensor to main memory; None where the values are written before they change.
    """

    def __init__(self, values: Any, copy: Callable[[Tensor], Tensor] | None = None) -> None:
        text, self.values = io.BytesIO(), on_host(values)
        super().__init__(text, protocol=2)
        self._copy, self._tensors = copy or _whole, []
        self._numbers: dict[Any, int] = {}
        self._places: set[int] = set()
        with suppress(NotImplementedError):
            self.dump(self.values)
            self.values = None  # except where there are tensors that only torch knows how to write
        self._text = text.getvalue()
        self.clear_memo()

    def save(self, file: IO[bytes]) -> None:
        """Write what `torch.save` writes."""
        if self.values is not None:
            return torch.save(self.values, file)
        torch.save(self, file, pickle_module=Pickled)

    def write(self, file: IO[bytes], note: Callable[[Any], Any]) -> None:
        """Write the pickled values, and note the storages in the order of their numbers."""
        for tensor in self._tensors:
            note(tensor.untyped_storage())
        file.write(self._text)

    class Pickler:
        """As that of the module `pickle`, for `torch.save`, which gives it a `persistent_id` that notes a storage."""

        persistent_id: Any

        def __init__(self, file: IO[bytes], protocol: int) -> None:
            self.file = file

        def dump(self, pickled: Pickled) -> None:
            """Write what is pickled already."""
            pickled.write(self.file, self.persistent_id)

    def persistent_id(self, value: Any) -> Any:
        """Return what torch looks up a storage by."""
        return tuple(value) if type(value) is _Storage else None

    def reducer_override(self, value: Any) -> Any:
        """Return what rebuilds a tensor."""
        kind = type(value)
        if kind is OrderedDict and not value:  # as many as tensors: the general way takes several times longer
            return OrderedDict, ()
        if torch.is_storage(value):
            raise NotImplementedError("only torch writes tensors that are more than a strided piece of memory")
        plain = kind is Tensor and value.layout is torch.strided and not value.is_meta and not vars(value)
        if not plain or value.dtype not in _DTYPES:
            return NotImplemented
        number = self._numbers.setdefault(identity(value) or len(self._tensors), len(self._tensors))
        if number == len(self._tensors):
            kept = self._copy(value.detach())
            place = kept.numel() and kept.data_ptr()
            self._tensors.append(kept.clone() if place in self._places else kept)  # torch numbers memory, not tensors
            self._places |= {place} if place else set()
        kept = self._tensors[number]
        storage = _Storage(("storage", _DTYPES[kept.dtype][1], str(number), "cpu", kept.numel()))
        return _rebuild_tensor, (storage, 0, tuple(kept.shape), kept.stride(), value.requires_grad, OrderedDict())


class _Storage(tuple[Any, ...]):
    """Arguments by which torch finds the memory of a tensor."""


def _whole(tensor: Tensor) -> Tensor:
    """Return a tensor with memory of its own."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def write_torch(values: Any, path: StrPath, written: WrittenFiles) -> None:
    """As `save_torch`, but the file is hashed while it is written.

    Args:
        values: tensors and plain values in dicts, lists and tuples, or these `Pickled`.
        path: the file.
        written: receives the checksum.

    Raises:
        OSError: the disk refused.
    """
    pickled = values if isinstance(values, Pickled) else Pickled(values)
    with _hashing(path, written) as file:
        pickled.save(file)


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
    kinds = {name: _DTYPES.get(tensor.dtype, (None,))[0] for name, tensor in tensors.items()}
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
