"""Read folders of `torch.distributed.checkpoint` without executing pickled code.

torch unpickles the table (`.metadata`) of such a folder, and each value that is not a tensor,
without restrictions. Here the table is parsed into names and numbers, from which torch's objects
are built, and values are read by `load_torch`.
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
"""Classes and functions that a table refers to, by their modules. None of them is imported or
called: see `_Record`.
"""


class PlainReader(FolderReader):
    """`FileSystemReader` of torch, but a table cannot run code or name files in other folders."""

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        """Return the table of the whole folder; tables of single processes are ignored.

        Raises:
            ValueError: it is damaged, or holds other things than a table.
        """
        table = read_table(self.folder)
        table.storage_meta = StorageMeta(load_id=self.load_id)
        return table


class PlainPlanner(DefaultLoadPlanner):
    """`DefaultLoadPlanner` of torch, but `load_torch` reads values that are not tensors."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        """Load one value.

        Raises:
            ValueError: it holds objects other than tensors and plain values.
        """
        plain = load_torch_bytes(value.getvalue(), read_item.dest_index.fqn)

        # torch unpickles these bytes without restrictions.
        checked = io.BytesIO()
        torch.save(plain, checked)
        checked.seek(0)
        super().load_bytes(read_item, checked)


def read_table(folder: Path) -> Metadata:
    """Return the table of a folder: its tensors and values by name.

    Raises:
        ValueError: the table is damaged, refers to objects that no table has or to files outside of
            its folder, or describes a tensor without some of its elements.
    """
    path = folder / PARTS_TABLE_NAME
    try:
        with path.open("rb") as file:
            written = _Unpickler(file).load()
        return _parse_table(written, path)
    except _DisallowedReferenceError as error:
        raise ValueError(
            f"{path} {error}, which no checkpoint of this kind does. It is not read, because that "
            "could run any program. Copy the checkpoint again from where it was written."
        ) from error
    except Exception as error:
        # An unpickler may raise any error for damaged bytes.
        raise ValueError(
            f"{path} is damaged and cannot be read: {error or type(error).__name__}"
        ) from error


def require_same_kinds(before: object, read: object, path: Path, name: str = "") -> None:
    """Check that a state that was read has the tensors of the state that it replaces.

    A file may hold a tensor of any shape instead of a number, and some optimizers do not check it.

    Args:
        before: the state to be replaced, nested in dicts and lists.
        read: the state that replaces it.
        path: the file of `read`.
        name: the keys that lead to the state, joined by dots, for the error.

    Raises:
        ValueError: a tensor is in the place of something else, or has another shape or format.
    """
    if isinstance(before, torch.Tensor) or isinstance(read, torch.Tensor):
        expected = describe_value(before)
        actual = describe_value(read)
        if actual != expected:
            raise ValueError(f"{path} holds {name} as {actual}, but it is {expected} here.")
    elif isinstance(before, Mapping) and isinstance(read, Mapping):
        old_values = cast("Mapping[str, Any]", before)
        new_values = cast("Mapping[str, Any]", read)
        prefix = f"{name}." if name else ""
        for key, value in new_values.items():
            require_same_kinds(old_values.get(key), value, path, f"{prefix}{key}")
    elif isinstance(read, (list, tuple)):
        new_items = cast("Sequence[Any]", read)
        # In a list of another length a tensor replaces nothing, and is refused.
        old_items = [None] * len(new_items)
        if isinstance(before, (list, tuple)):
            items_before = cast("Sequence[Any]", before)
            if len(items_before) == len(new_items):
                old_items = items_before
        for index, (old_item, new_item) in enumerate(zip(old_items, new_items, strict=True)):
            require_same_kinds(old_item, new_item, path, f"{name}.{index}")


class _DisallowedReferenceError(Exception):
    """A table refers to an object or a file that no table refers to."""


class _Record:
    """Stand-in for an object of a pickle, which is never built.

    It holds the name of the object's class, its arguments and its state.
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

        Immutable values of torch are returned themselves.
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


def _parse_table(written: object, path: Path) -> Metadata:
    """Build torch's table from its record."""
    table_state = _state_of(written, "Metadata")
    entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    for name, entry in table_state["state_dict_metadata"].items():
        entries[_require_text(name)] = _parse_entry(entry, _require_text(name))

    locations: dict[MetadataIndex, Any] = {}
    stored: dict[Any, Any] = table_state["storage_data"] or {}
    for index, info in stored.items():
        locations[_parse_index(index)] = _parse_location(info, path)

    table = Metadata(state_dict_metadata=entries, storage_data=locations)
    # torch 2.8 has no such field.
    table.version = table_state.get("version")
    return table


def _parse_entry(written: object, name: str) -> TensorStorageMetadata | BytesStorageMetadata:
    """Build the description of a tensor, or of a value that is not a tensor.

    Args:
        written: the record of the table.
        name: the name of the tensor or value, for errors.
    """
    if getattr(written, "class_name", None) == "BytesStorageMetadata":
        return BytesStorageMetadata()
    state = _state_of(written, "TensorStorageMetadata")

    # Older versions of torch wrote the properties as a tuple.
    properties = _state_of(state["properties"], "TensorProperties")
    key = "dtype" if isinstance(properties, dict) else 0
    dtype = cast("object", properties[key] or torch.float32)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"the format of {name} is not a dtype")

    size = _parse_size(state["size"])
    chunks = [_parse_chunk(chunk) for chunk in state["chunks"]]
    count = sum(math.prod(chunk.sizes) for chunk in chunks)
    if count != math.prod(size) or not all(_lies_inside(chunk, size) for chunk in chunks):
        raise ValueError(f"the parts of {name} are not all of its {math.prod(size)} elements")
    return TensorStorageMetadata(TensorProperties(dtype=dtype), size, chunks)


def _parse_chunk(written: object) -> ChunkStorageMetadata:
    state = _state_of(written, "ChunkStorageMetadata")
    return ChunkStorageMetadata(_parse_size(state["offsets"]), _parse_size(state["sizes"]))


def _lies_inside(chunk: ChunkStorageMetadata, size: torch.Size) -> bool:
    """Return whether a chunk is a part of a tensor of this size."""
    if not len(size) == len(chunk.offsets) == len(chunk.sizes):
        return False
    extents = zip(chunk.offsets, chunk.sizes, size, strict=True)
    return all(start + length <= end for start, length, end in extents)


def _parse_index(written: object) -> MetadataIndex:
    """Build the key of a value, or of one chunk of a tensor."""
    state = _state_of(written, "MetadataIndex")
    offset = state.get("offset")
    if offset is not None:
        offset = _parse_size(offset)
    index = state.get("index")
    if index is not None:
        index = int(index)
    return MetadataIndex(_require_text(state["fqn"]), offset, index)


def _parse_location(written: object, path: Path) -> SimpleNamespace:
    """Build the file and the range of bytes of a value, or of one chunk of a tensor."""
    state = _state_of(written, "_StorageInfo")
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


def _state_of(written: Any, class_name: str) -> Any:
    """Return the state of the record of an object of this class."""
    if getattr(written, "class_name", None) != class_name:
        raise TypeError(f"a {type(written).__name__} is in the place of a {class_name}")
    return written.state


def _require_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} is in the place of a name")
    return value


def _parse_size(value: Iterable[int]) -> torch.Size:
    size = torch.Size(value)
    if any(length < 0 for length in size):
        raise ValueError(f"the size {tuple(size)} has a negative length")
    return size
