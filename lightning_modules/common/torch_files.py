"""Safe `torch.save` and `torch.load`: only tensors and plain values are unpickled.

Errors name the file. Tensors of torch_xla are copied to main memory to be written.
"""

from __future__ import annotations

import io
import os
import pickle
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from .libraries import loaded
from .local_paths import StrPath

if TYPE_CHECKING:
    import torch
    from torch import nn

NUMBER_CODES = "?bhilqBHILQefdFD"
"""The type codes of NumPy's arrays that `load_torch` reads."""


def save_torch(obj: object, path: StrPath) -> None:
    """Write a file with `torch.save`; a failed write is an `OSError` that names the file.

    Args:
        obj: tensors, numbers, strings, NumPy arrays, and dicts, lists and tuples of them.
        path: the file; it is overwritten in place, so write into a staged folder.
    """
    import torch

    # If the disk is full, torch does not close a file that it has opened itself.
    with writing_to(path), open(path, "wb") as file:
        torch.save(on_host(obj), file)


@contextmanager
def writing_to(path: StrPath) -> Iterator[None]:
    """Raise failed writes of the block as an `OSError` that names the file.

    Raises:
        OSError: the disk refused.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        # torch's zip writer raises another error, whose context is the error of the file.
        refusal: BaseException | None = error
        if isinstance(error, RuntimeError):
            refusal = error.__context__
        if not isinstance(refusal, OSError) or refusal.filename is not None:
            raise
        reason = refusal.strerror or refusal
        raise type(refusal)(
            refusal.errno, f"could not be written: {reason}", os.fspath(path)
        ) from error


def load_torch(
    path: StrPath,
    *,
    mmap: bool = False,
    stand_ins: Mapping[str, object] | None = None,
) -> Any:
    """Read a file into main memory with `torch.load(weights_only=True)`.

    NumPy arrays and numbers are allowed, because random states hold them.

    Args:
        path: a file written by `torch.save`.
        mmap: leave the tensors in the file, to be read when they are looked at; not for torch's
            format before 1.6.
        stand_ins: replacements of further classes and functions that the file may refer to, by
            the names of these.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is damaged, or holds objects other than tensors and plain values.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"the file {path} does not exist")
    allowed: list[Any] = []
    if stand_ins is not None:
        allowed = [(stand_in, name) for name, stand_in in stand_ins.items()]
    return _load(path, path, allowed, mmap=mmap)


def _load(
    source: StrPath | BinaryIO,
    name: StrPath,
    allowed: Sequence[Any] = (),
    *,
    mmap: bool | None = None,
) -> Any:
    """Load a file with NumPy's objects, and others that are allowed.

    Args:
        source: path or content of the file.
        name: the name of the file, for errors.
        allowed: objects, or pairs of a stand-in and the name that it replaces.
        mmap: as for `torch.load`.
    """
    import torch

    try:
        with torch.serialization.safe_globals([*_numpy_globals(), *allowed]):
            return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise ValueError(_unpickling_message(name, error)) from error
    except MemoryError:
        raise
    except Exception as error:
        # A changed byte may raise any error.
        raise ValueError(f"{name} is damaged and cannot be read: {error}") from error


def require_known_objects(path: StrPath, allowed_names: Collection[str] = ()) -> None:
    """Check the globals of a file that other code will unpickle without `weights_only`.

    Args:
        path: a file written by `torch.save`; none of its objects is built.
        allowed_names: classes and functions that are allowed besides those of `load_torch`.

    Raises:
        ValueError: the file refers to others, or is damaged.
    """
    import torch

    try:
        with torch.serialization.safe_globals(_numpy_globals()):
            names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception as error:
        # An old format, or not a file of torch: unpickling it could run any code.
        raise ValueError(
            f"{path} is damaged, or not a file of torch, and is not read: {error}"
        ) from error
    unsafe = sorted(set(names) - set(allowed_names))
    if unsafe:
        raise ValueError(
            f"{path} refers to {', '.join(unsafe)}, which could run any program, and is not read."
        )


def describe_value(value: object) -> str:
    """Return shape and dtype of a tensor, or the class of another value, in words."""
    import torch

    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    return f"a tensor of shape {tuple(value.shape)} and {str(value.dtype).removeprefix('torch.')}"


def torch_bytes(obj: object) -> bytes:
    """Return the bytes that `save_torch` writes."""
    import torch

    buffer = io.BytesIO()
    torch.save(on_host(obj), buffer)
    return buffer.getvalue()


def pack(obj: object) -> torch.Tensor:
    """Pack an object into a tensor of bytes, for files from which only tensors are read."""
    import torch

    return torch.frombuffer(bytearray(torch_bytes(obj)), dtype=torch.uint8)


def unpack(packed: torch.Tensor) -> Any:
    """Return the object in a tensor that `pack` returned; safe, as `load_torch`.

    Raises:
        ValueError: it is damaged, or holds objects other than tensors and plain values.
    """
    return load_torch_bytes(packed.cpu().numpy().tobytes(), "the packed value")


def load_torch_bytes(content: bytes, name: str) -> object:
    """Return the object in the bytes of a file of `save_torch`; safe, as `load_torch`.

    Args:
        content: all bytes of the file.
        name: description of the bytes, for errors.

    Raises:
        ValueError: they are damaged, or hold objects other than tensors and plain values.
    """
    return _load(io.BytesIO(content), name)


def _unpickling_message(path: StrPath, error: pickle.UnpicklingError) -> str:
    # torch's own text begins with the advice to switch the check off, which is left out here.
    reference = re.search(r"GLOBAL (\S+)", str(error))
    if reference is None:
        return (
            f"{path} is damaged or was not written by torch.save; delete it or restore it from a "
            "backup"
        )
    return (
        f"{path} refers to {reference[1]}, but only tensors and plain values are read from it. If "
        "you trust its origin, allow that first: torch.serialization.add_safe_globals([...])"
    )


def _numpy_globals() -> list[Any]:
    """List the functions and classes that pickled NumPy arrays and numbers refer to.

    Functions are listed by their names in NumPy 1 and in NumPy 2.
    """
    import numpy as np

    # Taken from NumPy's objects, because the private module that holds them has moved.
    rebuild_array = np.empty(0).__reduce__()[0]
    rebuild_scalar = np.float64(0).__reduce__()[0]
    allowed: list[object] = [np.ndarray, np.dtype]
    for core in ("core", "_core"):
        module = f"numpy.{core}.multiarray"
        allowed.append((rebuild_array, f"{module}._reconstruct"))
        allowed.append((rebuild_scalar, f"{module}.scalar"))

    # Each format of numbers has a class.
    dtype_classes = {type(np.dtype(code)) for code in NUMBER_CODES}
    allowed += dtype_classes
    return allowed


def on_host(values: object) -> Any:
    """Return nested values with tensors of torch_xla copied to main memory.

    Without torch_xla the values themselves are returned.
    """
    if not loaded("torch_xla"):
        return values
    from .nested import map_nested

    return map_nested(_copied, values)


def state_on_host(model: nn.Module) -> dict[str, Any] | None:
    """Return the state dict of a model on torch_xla in main memory; None for other models.

    Tied weights stay tied.
    """
    if not loaded("torch_xla"):
        return None
    if all(parameter.device.type != "xla" for parameter in model.parameters()):
        return None

    # With `keep_vars` tied weights are the same objects.
    copies: dict[int, Any] = {}
    state: dict[str, Any] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) not in copies:
            copies[id(value)] = _copied(value)
        state[name] = copies[id(value)]
    return state


def _copied(leaf: object) -> Any:
    import torch

    if isinstance(leaf, torch.Tensor) and leaf.device.type == "xla":
        return leaf.detach().cpu()
    return leaf
