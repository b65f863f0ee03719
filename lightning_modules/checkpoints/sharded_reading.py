"""Read `torch.distributed.checkpoint` folders without executing pickled code.

torch unpickles the metadata (`.metadata`, called table here) of such a folder, and each value that
is not a tensor, without restrictions. This module parses the table into names and numbers, builds
torch's objects from them, and reads values by `load_torch`.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from ..common.torch_checkpoint import FolderReader
from ..common.torch_files import describe_value, load_torch_bytes
from .weight_formats import PARTS_TABLE_NAME, lies_beside

_RECORDS = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    # Before torch 2.3.
    "torch.distributed._shard.sharded_tensor.metadata": {"TensorProperties", "MEM_FORMAT_ENCODING"},
    "torch.serialization": {"_get_layout"},
    # From Python 3.13 on paths are in a private module.
    "pathlib": {"PosixPath", "WindowsPath"},
    "pathlib._local": {"PosixPath", "WindowsPath"},
}
"""Classes and functions that a table may refer to, by module. They are never imported or called,
see `_Record`.
"""


class PlainReader(FolderReader):
    """torch's `FileSystemReader`, but tables cannot run code or refer to files elsewhere."""

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        """Read the table of the folder. Tables of single ranks are ignored.

        Raises:
            ValueError: it is damaged, or not a table.
        """
        table = read_table(self.folder)
        table.storage_meta = StorageMeta(load_id=self.load_id)
        return table


class PlainPlanner(DefaultLoadPlanner):
    """torch's `DefaultLoadPlanner`, but values that are not tensors are read by `load_torch`."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        """Load one value.

        Raises:
            ValueError: it holds objects other than tensors and plain values.
        """
        plain = load_torch_bytes(value.getvalue(), read_item.dest_index.fqn)

        # The base class unpickles the bytes without restrictions, so pass it only checked values.
        checked = io.BytesIO()
        torch.save(plain, checked)
        checked.seek(0)
        super().load_bytes(read_item, checked)


def read_table(folder: Path) -> Metadata:
    """Read the table of a folder, which describes its tensors and values by name.

    Raises:
        ValueError: the table is damaged, refers to unexpected objects or to files outside of its
            folder, or does not cover all elements of a tensor.
    """
    path = folder / PARTS_TABLE_NAME
    try:
        with path.open("rb") as file:
            record = _Unpickler(file).load()
        return _parse_table(record, path)
    except _DisallowedReferenceError as error:
        raise ValueError(
            f"{path} {error}, which torch never writes. It is not loaded, because it could execute "
            "arbitrary code. Restore the checkpoint from a backup."
        ) from error
    except Exception as error:
        # Damaged bytes may cause any error.
        raise ValueError(
            f"{path} is damaged and cannot be read: {error or type(error).__name__}"
        ) from error


def require_same_kinds(before: object, read: object, path: Path, name: str = "") -> None:
    """Check that the tensors of a loaded state match those of the state that it replaces.

    A file may hold a tensor of any shape instead of a number, and some optimizers do not check
    that.

    Args:
        before: the state to be replaced, in nested dicts and lists.
        read: the loaded state.
        path: its file, for the message.
        name: the keys of the state joined by dots, for the message.

    Raises:
        ValueError: a tensor replaces another kind of value, or its shape or dtype differs.
    """
    if isinstance(before, torch.Tensor) or isinstance(read, torch.Tensor):
        expected = describe_value(before)
        actual = describe_value(read)
        if actual != expected:
            raise ValueError(f"{path}: {name} is {actual}, but this run expects {expected}.")
    elif isinstance(before, Mapping) and isinstance(read, Mapping):
        old_values = cast("Mapping[str, Any]", before)
        new_values = cast("Mapping[str, Any]", read)
        prefix = f"{name}." if name else ""
        for key, value in new_values.items():
            require_same_kinds(old_values.get(key), value, path, f"{prefix}{key}")
    elif isinstance(read, (list, tuple)):
        new_items = cast("Sequence[Any]", read)
        # Tensors in a list of another length have no counterpart, so they raise.
        old_items = [None] * len(new_items)
        if isinstance(before, (list, tuple)):
            items_before = cast("Sequence[Any]", before)
            if len(items_before) == len(new_items):
                old_items = items_before
        for index, (old_item, new_item) in enumerate(zip(old_items, new_items, strict=True)):
            require_same_kinds(old_item, new_item, path, f"{name}.{index}")


class _DisallowedReferenceError(Exception):
    """A table refers to an object or a file that tables of torch never refer to."""


class _Record:
    """Stand-in for a pickled object, which is never built.

    Holds the name of the class, the arguments and the state of the object.
    """

    class_name = ""
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> _Record:
        record = super().__new__(cls)
        record.args = args
        record.state = {}
        return record

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._record_classes: dict[str, type[_Record]] = {}

    def find_class(self, module: str, name: str) -> object:
        """Return a subclass of `_Record` for a known class.

        Immutable torch values, such as dtypes, are returned as they are.
        """
        if name in _RECORDS.get(module, ()):
            record_class = type(name, (_Record,), {"class_name": name})
            return self._record_classes.setdefault(name, record_class)
        if (module, name) == ("torch", "Size"):
            return torch.Size
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if module == "torch":
            value: object = getattr(torch, name, None)
            if isinstance(value, (torch.dtype, torch.layout)):
                return value
        raise _DisallowedReferenceError(f"refers to {module}.{name}")

    def persistent_load(self, pid: object) -> object:
        """Refuse references to other files."""
        raise _DisallowedReferenceError("refers to another file")


def _parse_table(record: object, path: Path) -> Metadata:
    """Build torch's `Metadata` from its record."""
    table_state = _state_of(record, "Metadata")
    entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    for name, entry in table_state["state_dict_metadata"].items():
        entries[_require_text(name)] = _parse_entry(entry, _require_text(name))

    locations: dict[MetadataIndex, Any] = {}
    stored: dict[Any, Any] = table_state["storage_data"] or {}
    for index, info in stored.items():
        locations[_parse_index(index)] = _parse_location(info, path)

    table = Metadata(state_dict_metadata=entries, storage_data=locations)
    # torch 2.8 does not have this field.
    table.version = table_state.get("version")
    return table


def _parse_entry(record: object, name: str) -> TensorStorageMetadata | BytesStorageMetadata:
    """Build the description of a tensor, or of a value that is not a tensor.

    Args:
        record: the record in the table.
        name: the name of the tensor or value, for errors.
    """
    if getattr(record, "class_name", None) == "BytesStorageMetadata":
        return BytesStorageMetadata()
    state = _state_of(record, "TensorStorageMetadata")

    # Older versions of torch wrote the properties as a tuple.
    properties = _state_of(state["properties"], "TensorProperties")
    key = "dtype" if isinstance(properties, dict) else 0
    dtype = cast("object", properties[key] or torch.float32)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"the dtype of {name} is invalid")

    size = _parse_size(state["size"])
    chunks = [_parse_chunk(chunk) for chunk in state["chunks"]]
    count = sum(math.prod(chunk.sizes) for chunk in chunks)
    if count != math.prod(size) or not all(_lies_inside(chunk, size) for chunk in chunks):
        raise ValueError(f"the chunks of {name} do not cover its {math.prod(size)} elements")
    return TensorStorageMetadata(TensorProperties(dtype=dtype), size, chunks)


def _parse_chunk(record: object) -> ChunkStorageMetadata:
    state = _state_of(record, "ChunkStorageMetadata")
    return ChunkStorageMetadata(_parse_size(state["offsets"]), _parse_size(state["sizes"]))


def _lies_inside(chunk: ChunkStorageMetadata, size: torch.Size) -> bool:
    """Return whether a chunk lies within a tensor of this size."""
    if not len(size) == len(chunk.offsets) == len(chunk.sizes):
        return False
    extents = zip(chunk.offsets, chunk.sizes, size, strict=True)
    return all(start + length <= end for start, length, end in extents)


def _parse_index(record: object) -> MetadataIndex:
    """Build the index of a value or of one chunk of a tensor."""
    state = _state_of(record, "MetadataIndex")
    offset = state.get("offset")
    if offset is not None:
        offset = _parse_size(offset)
    index = state.get("index")
    if index is not None:
        index = int(index)
    return MetadataIndex(_require_text(state["fqn"]), offset, index)


def _parse_location(record: object, path: Path) -> SimpleNamespace:
    """Build the location of a value or of one chunk of a tensor: its file and byte range."""
    state = _state_of(record, "_StorageInfo")
    file = _require_text(state["relative_path"])
    if not lies_beside(path, file):
        raise _DisallowedReferenceError(f"names the file {file!r}")
    transforms = state.get("transform_descriptors")
    if transforms:
        raise ValueError(f"{file} is written with transforms that are not supported: {transforms}")
    start, length = _parse_size((state["offset"], state["length"]))
    return SimpleNamespace(
        relative_path=file, offset=start, length=length, transform_descriptors=None
    )


def _state_of(record: Any, class_name: str) -> Any:
    """Return the state of a record, after checking the class of its object."""
    if getattr(record, "class_name", None) != class_name:
        raise TypeError(f"expected a {class_name}, got a {type(record).__name__}")
    return record.state


def _require_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a name, got a {type(value).__name__}")
    return value


def _parse_size(value: Iterable[int]) -> torch.Size:
    size = torch.Size(value)
    if any(length < 0 for length in size):
        raise ValueError(f"the size {tuple(size)} has a negative length")
    return size
