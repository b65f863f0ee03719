"""As `torch.save` and `torch.load`, but only tensors and plain values are unpickled, and errors
name the file.

Tensors of torch_xla are copied to main memory to be written.
"""

from __future__ import annotations

import io
import os
import pickle
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .libraries import loaded
from .local_paths import StrPath

if TYPE_CHECKING:
    import torch
    from torch import nn

_A_LITTLE = 1 << 20  # bytes; less may fit into what is left of a file's last block


def save_torch(obj: Any, path: StrPath) -> None:
    """As `torch.save`, but a failed write is an `OSError` that names the file.

    Args:
        obj: tensors, numbers, strings, NumPy arrays, and dicts, lists and tuples of them.
        path: the file; it is overwritten in place, so write into a staged folder.
    """
    import torch

    # torch leaves a file that it opens itself open if the disk is full.
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
    except OSError as error:
        if error.filename is not None:
            raise
        reason = error.strerror or error
        raise type(error)(
            error.errno, f"could not be written: {reason}", os.fspath(path)
        ) from error
    except RuntimeError as error:  # raised by torch's zip writer for a failed write
        raise _refusal_of_the_disk(path, error) from error


def load_torch(
    path: StrPath,
    map_location: str | torch.device | None = "cpu",
    *,
    mmap: bool = False,
    known: Mapping[str, Any] | None = None,
) -> Any:
    """As `torch.load(weights_only=True)`, but NumPy arrays and numbers are allowed too (random
    states hold them).

    Args:
        path: a file written by `torch.save`.
        map_location: the device the tensors go to.
        mmap: leave the tensors in the file, to be read when they are looked at; not for torch's
            format before 1.6.
        known: further classes and functions that the file may refer to, by name, and what is to
            take their place.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, or holds objects other than tensors and plain values.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}")
    stand_ins = [(instead, name) for name, instead in (known or {}).items()]
    return _load(path, path, stand_ins, map_location=map_location, mmap=mmap)


def _load(source: Any, name: StrPath, stand_ins: Sequence[Any] = (), **options: Any) -> Any:
    import torch

    try:
        with torch.serialization.safe_globals([*_numpy_globals(), *stand_ins]):
            return torch.load(source, weights_only=True, **options)
    except pickle.UnpicklingError as error:
        raise ValueError(_refusal(name, error)) from error
    except MemoryError:
        raise
    except Exception as error:  # a changed byte may raise any error
        raise ValueError(f"{name} is damaged and cannot be read: {error}") from error


def require_known_objects(path: StrPath, known: Collection[str] = ()) -> None:
    """Check the globals of a file that other code will unpickle without `weights_only`.

    Args:
        path: a file written by `torch.save`; none of its objects is built.
        known: names of allowed classes and functions, besides those of `load_torch`.

    Raises:
        ValueError: there is something else in it, or it is damaged.
    """
    import torch

    try:
        with torch.serialization.safe_globals(_numpy_globals()):
            found = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    # an old format, or no file of torch: unpickling it could run any code
    except Exception as error:
        raise ValueError(
            f"{path} is damaged, or not a file of torch, and is not read: {error}"
        ) from error
    others = sorted(set(found) - set(known))
    if others:
        raise ValueError(
            f"{path} refers to {', '.join(others)}, which could run any program, and is not read."
        )


def describe_value(value: Any) -> str:
    """Return shape and dtype of a tensor, or the class of another value, in words."""
    import torch

    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    return f"a tensor of shape {tuple(value.shape)} and {str(value.dtype).removeprefix('torch.')}"


def torch_bytes(obj: Any) -> bytes:
    """Return what `save_torch` writes."""
    import torch

    buffer = io.BytesIO()
    torch.save(on_host(obj), buffer)
    return buffer.getvalue()


def pack(obj: Any) -> torch.Tensor:
    """As `save_torch`, but into a tensor of bytes, for files from which only tensors may be
    read.
    """
    import torch

    return torch.frombuffer(bytearray(torch_bytes(obj)), dtype=torch.uint8)


def unpack(packed: torch.Tensor) -> Any:
    """As `load_torch`, from what `pack` returned.

    Raises:
        ValueError: it is damaged, or holds objects other than tensors and plain values.
    """
    return load_torch_bytes(packed.cpu().numpy().tobytes(), "the packed value")


def load_torch_bytes(content: bytes, name: str) -> Any:
    """As `load_torch`, from the bytes of such a file.

    Args:
        content: the bytes.
        name: description of the bytes, for errors.

    Raises:
        ValueError: they are damaged, or hold objects other than tensors and plain values.
    """
    return _load(io.BytesIO(content), name, map_location="cpu")


def _refusal_of_the_disk(path: StrPath, error: RuntimeError) -> OSError:
    """Return the system error that torch hides, by writing a little more to the file."""
    try:
        with open(path, "ab") as file:
            file.write(bytes(_A_LITTLE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as refusal:
        return type(refusal)(
            refusal.errno, f"could not be written: {refusal.strerror}", os.fspath(path)
        )
    return OSError(f"{path} could not be written: {error}")


def _refusal(path: StrPath, error: pickle.UnpicklingError) -> str:
    # torch's own text begins with the advice to switch the check off; only its finding is kept.
    found = re.search(r"GLOBAL (\S+)", str(error))
    if found is None:
        return (
            f"{path} is damaged or was not written by torch.save; delete it, or copy it again from "
            "where it came"
        )
    return (
        f"{path} refers to {found[1]}, but only tensors and plain values are read from it. If you "
        "trust its origin, allow that first: torch.serialization.add_safe_globals([...])"
    )


def _numpy_globals() -> list[Any]:
    """List the functions and classes that pickled NumPy arrays and numbers refer to, by the
    names of NumPy 1 and 2.
    """
    import numpy as np

    # Taken from NumPy's objects, because the private module that holds them has moved.
    rebuild_array, rebuild_scalar = np.empty(0).__reduce__()[0], np.float64(0).__reduce__()[0]
    renamed = [
        (function, f"numpy.{core}.multiarray.{name}")
        for core in ("core", "_core")
        for function, name in ((rebuild_array, "_reconstruct"), (rebuild_scalar, "scalar"))
    ]
    kinds = {type(np.dtype(code)) for code in "?bhilqBHILQefdFD"}
    return [*renamed, np.ndarray, np.dtype, *kinds]


def on_host(values: Any) -> Any:
    """Return nested values with tensors of torch_xla copied to main memory; without any, the
    values themselves.
    """
    if not loaded("torch_xla"):
        return values
    from .nested import map_nested

    return map_nested(_copied, values)


def state_on_host(model: nn.Module) -> dict[str, Any] | None:
    """Return the state dict of a model on torch_xla in main memory, with ties; None for other
    models.
    """
    if not loaded("torch_xla") or not any(
        tensor.device.type == "xla" for tensor in model.parameters()
    ):
        return None
    copies: dict[int, Any] = {}
    state = model.state_dict(keep_vars=True)  # tied weights are the same objects
    return {name: copies.setdefault(id(value), _copied(value)) for name, value in state.items()}


def _copied(leaf: Any) -> Any:
    import torch

    return (
        leaf.detach().cpu()
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "xla"
        else leaf
    )
