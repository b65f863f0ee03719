"""As `torch.distributed.checkpoint.load` from a folder, but without executing pickled code.

torch unpickles the table (`.metadata`) of such a folder, and each value that is no tensor, without
restrictions. Here the table is parsed into names and numbers, from which torch's objects are built,
and values are read by `load_torch`.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from ..common.torch_files import describe_value, load_torch_bytes
from .weight_formats import PARTS_TABLE_NAME, lies_beside

_DESCRIBED = "torch.distributed.checkpoint.metadata"
_RECORDS = {
    *(
        (_DESCRIBED, name)
        for name in ("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex")
    ),
    *((_DESCRIBED, name) for name in ("StorageMeta", "TensorProperties", "TensorStorageMetadata")),
    (_DESCRIBED, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    # Before torch 2.3
    ("torch.distributed._shard.sharded_tensor.metadata", "TensorProperties"),
    ("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"),
    ("torch.serialization", "_get_layout"),
    *(
        (module, name)
        for module in ("pathlib", "pathlib._local")
        for name in ("PosixPath", "WindowsPath")
    ),
}
"""Classes and functions that a table refers to. None of them is imported or called: see
`_Record`.
"""


class PlainReader(FileSystemReader):
    """As torch's `FileSystemReader`, but a table cannot execute code or name files outside of
    its folder.
    """

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the table of the whole folder; tables of single processes are ignored.

        Raises:
            ValueError: it is damaged, or holds what no table holds.
        """
        table = read_table(Path(self.path))
        table.storage_meta = StorageMeta(load_id=self.load_id)
        return table


class PlainPlanner(DefaultLoadPlanner):
    """As torch's `DefaultLoadPlanner`, but values that are no tensors are read as `load_torch`
    reads them.
    """

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        """Load one value.

        Raises:
            ValueError: it holds objects other than tensors and plain values.
        """
        plain, again = load_torch_bytes(value.getvalue(), read_item.dest_index.fqn), io.BytesIO()
        torch.save(plain, again)  # torch unpickles these bytes without restrictions
        again.seek(0)
        super().load_bytes(read_item, again)


def read_table(folder: Path) -> Metadata:
    """Return the table of a folder: its tensors and values by name.

    Raises:
        ValueError: the table is damaged, refers to what no table refers to, or to files outside of
            its folder, or describes a tensor of which there are not all elements.
    """
    path = folder / PARTS_TABLE_NAME
    try:
        with path.open("rb") as file:
            written = _Unpickler(file).load()
        return _table(written, path)
    except _Foreign as error:
        raise ValueError(
            f"{path} {error}, which no checkpoint of this kind holds, and is not read: reading it "
            "could run any program. Take the checkpoint from where it was written."
        ) from error
    except Exception as error:  # an unpickler that is given anything may raise anything
        raise ValueError(
            f"{path} is damaged and cannot be read: {error or type(error).__name__}"
        ) from error


def require_same_kinds(own: Any, read: Any, path: Path, name: str = "") -> None:
    """Check that a state that was read has the tensors of the state it replaces.

    A file can hold a tensor of any shape in place of a number, and some optimizers do not check it.

    Args:
        own: the state before, nested in dicts and lists.
        read: the state to replace it.
        path: the file of `read`.
        name: of the state.

    Raises:
        ValueError: there is a tensor in the place of something else, or one of another shape or
            format.
    """
    if isinstance(own, torch.Tensor) or isinstance(read, torch.Tensor):
        expected = describe_value(own)
        actual = describe_value(read)
        if actual != expected:
            raise ValueError(f"{path} holds {name} as {actual}, but it is {expected} here.")
    elif isinstance(own, Mapping) and isinstance(read, Mapping):
        for key, value in read.items():
            require_same_kinds(own.get(key), value, path, f"{name}.{key}" if name else str(key))
    elif isinstance(read, (list, tuple)):
        before = (
            own if isinstance(own, (list, tuple)) and len(own) == len(read) else [None] * len(read)
        )
        for index, (one, value) in enumerate(zip(before, read, strict=True)):
            require_same_kinds(one, value, path, f"{name}.{index}")


class _Foreign(Exception):  # noqa: N818 - an error of this file, which says it in full
    pass


class _Record:
    """Stand-in for an object of a pickle, with its class's name, arguments and state; the object
    is never built.
    """

    cls = ""

    def __new__(cls, *args: Any) -> _Record:
        made = super().__new__(cls)
        made.args, made.state = args, {}
        return made

    args: tuple[Any, ...]
    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._records: dict[str, type[_Record]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return a subclass of `_Record` for a known class; immutable values of torch are
        returned themselves.
        """
        if (module, name) in _RECORDS:
            return self._records.setdefault(name, type(name, (_Record,), {"cls": name}))
        if (module, name) == ("torch", "Size"):
            return torch.Size
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        found = getattr(torch, name, None) if module == "torch" else None
        if isinstance(found, (torch.dtype, torch.layout)):
            return found
        raise _Foreign(f"refers to {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        """Refuse references to other files."""
        raise _Foreign("refers to another file")


def _table(written: Any, path: Path) -> Metadata:
    state = _state(written, "Metadata")
    described = {
        _text(name): _described(value, _text(name))
        for name, value in state["state_dict_metadata"].items()
    }
    places = [_place(index, info, path) for index, info in (state["storage_data"] or {}).items()]
    table = Metadata(state_dict_metadata=described, storage_data=dict(places))
    table.version = state.get("version")  # torch 2.8 has no such field
    return table


def _described(written: Any, name: str) -> TensorStorageMetadata | BytesStorageMetadata:
    if getattr(written, "cls", None) == "BytesStorageMetadata":
        return BytesStorageMetadata()
    state = _state(written, "TensorStorageMetadata")
    properties = _state(state["properties"], "TensorProperties")
    dtype = (
        properties["dtype"] if isinstance(properties, dict) else properties[0]
    ) or torch.float32
    size, chunks = _size(state["size"]), [_chunk(one) for one in state["chunks"]]
    inside = all(
        len(size) == len(chunk.offsets) == len(chunk.sizes)
        and all(
            start + length <= end
            for start, length, end in zip(chunk.offsets, chunk.sizes, size, strict=True)
        )
        for chunk in chunks
    )
    if not inside or sum(math.prod(chunk.sizes) for chunk in chunks) != math.prod(size):
        raise ValueError(f"the parts of {name} are not all of its {math.prod(size)} elements")
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"the format of {name} is none")
    return TensorStorageMetadata(TensorProperties(dtype=dtype), size, chunks)


def _chunk(written: Any) -> ChunkStorageMetadata:
    state = _state(written, "ChunkStorageMetadata")
    return ChunkStorageMetadata(_size(state["offsets"]), _size(state["sizes"]))


def _place(index: Any, info: Any, path: Path) -> tuple[MetadataIndex, Any]:
    """Return the place of a value or of one chunk of a tensor."""
    key, place = _state(index, "MetadataIndex"), _state(info, "_StorageInfo")
    offset, file = key.get("offset"), _text(place["relative_path"])
    if not lies_beside(path, file):
        raise _Foreign(f"names the file {file!r}")
    if place.get("transform_descriptors"):
        raise ValueError(
            f"{file} is written in a way that is not known here: {place['transform_descriptors']}"
        )
    hint = key.get("index")
    made = MetadataIndex(
        _text(key["fqn"]),
        None if offset is None else _size(offset),
        None if hint is None else int(hint),
    )
    start, length = _size((place["offset"], place["length"]))
    return made, SimpleNamespace(
        relative_path=file, offset=start, length=length, transform_descriptors=None
    )


def _state(written: Any, cls: str) -> Any:
    if getattr(written, "cls", None) != cls:
        raise TypeError(f"there is a {type(written).__name__} in the place of a {cls}")
    return written.state


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"there is a {type(value).__name__} in the place of a name")
    return value


def _size(value: Any) -> torch.Size:
    found = torch.Size(value)
    if any(length < 0 for length in found):
        raise ValueError(f"there is a negative size among {tuple(found)}")
    return found
