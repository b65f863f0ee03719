"""Save and load torch files safely: only tensors and plain values are unpickled.

Errors name the file. Tensors of torch_xla are copied to the CPU before saving.
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
"""Type codes of NumPy arrays that `load_torch` accepts."""


def save_torch(obj: object, path: StrPath) -> None:
    """Write a file with `torch.save`. A failed write raises an `OSError` that names the file.

    Args:
        obj: tensors, numbers, strings and NumPy arrays, nested in dicts, lists and tuples.
        path: the file. It is overwritten in place, so use a staged folder.
    """
    import torch

    # If the disk is full, torch does not close a file that it has opened, so open it here.
    with writing_to(path), open(path, "wb") as file:
        torch.save(on_host(obj), file)


@contextmanager
def writing_to(path: StrPath) -> Iterator[None]:
    """Convert failed writes in the `with` block to an `OSError` that names the file.

    Raises:
        OSError: the file could not be written.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        # torch's zip writer raises a RuntimeError whose context is the original error.
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
    """Load a file to the CPU with `torch.load(weights_only=True)`.

    NumPy arrays and numbers are allowed, because RNG states contain them.

    Args:
        path: a file written by `torch.save`.
        mmap: memory-map the tensors. Not supported for torch's format before 1.6.
        stand_ins: replacements for other classes and functions in the file, by their names.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is damaged, or contains objects other than tensors and plain values.
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
    """Load a file with NumPy objects and additional allowed objects.

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
        # Damage may cause any error.
        raise ValueError(f"{name} is damaged and cannot be read: {error}") from error


def require_known_objects(path: StrPath, allowed_names: Collection[str] = ()) -> None:
    """Check a file that other code will unpickle without `weights_only`.

    Args:
        path: a file written by `torch.save`. Its objects are not built.
        allowed_names: names of classes and functions to allow in addition to those of `load_torch`.

    Raises:
        ValueError: the file is damaged or refers to other objects.
    """
    import torch

    try:
        with torch.serialization.safe_globals(_numpy_globals()):
            names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception as error:
        # The format is old or not torch's. Unpickling the file could execute arbitrary code.
        raise ValueError(
            f"{path} is damaged or not a torch file, and is not loaded: {error}"
        ) from error
    unsafe = sorted(set(names) - set(allowed_names))
    if unsafe:
        raise ValueError(
            f"{path} refers to {', '.join(unsafe)}, which could run any code, and is not loaded."
        )


def describe_value(value: object) -> str:
    """Describe a tensor by shape and dtype, and other values by their class."""
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
    """Serialize an object to a byte tensor, for files that only hold tensors."""
    import torch

    return torch.frombuffer(bytearray(torch_bytes(obj)), dtype=torch.uint8)


def unpack(packed: torch.Tensor) -> Any:
    """Deserialize the result of `pack`, as safely as `load_torch`.

    Raises:
        ValueError: it is damaged, or contains objects other than tensors and plain values.
    """
    return load_torch_bytes(packed.cpu().numpy().tobytes(), "the packed value")


def load_torch_bytes(content: bytes, name: str) -> object:
    """Deserialize the bytes of a file of `save_torch`, as safely as `load_torch`.

    Args:
        content: the bytes of the file.
        name: description of the bytes, for errors.

    Raises:
        ValueError: they are damaged, or contain objects other than tensors and plain values.
    """
    return _load(io.BytesIO(content), name)


def _unpickling_message(path: StrPath, error: pickle.UnpicklingError) -> str:
    # Do not include torch's message, which advises to disable the check.
    reference = re.search(r"GLOBAL (\S+)", str(error))
    if reference is None:
        return (
            f"{path} is damaged or was not written by torch.save; delete it or restore it from a "
            "backup"
        )
    return (
        f"{path} refers to {reference[1]}, but only tensors and plain values are loaded. If you "
        "trust the file, allow it first: torch.serialization.add_safe_globals([...])"
    )


def _numpy_globals() -> list[Any]:
    """Return the functions and classes that pickled NumPy arrays and numbers refer to.

    Functions have different names in NumPy 1 and 2.
    """
    import numpy as np

    # Get them from NumPy objects, because their private module has moved.
    rebuild_array = np.empty(0).__reduce__()[0]
    rebuild_scalar = np.float64(0).__reduce__()[0]
    allowed: list[object] = [np.ndarray, np.dtype]
    for core in ("core", "_core"):
        module = f"numpy.{core}.multiarray"
        allowed.append((rebuild_array, f"{module}._reconstruct"))
        allowed.append((rebuild_scalar, f"{module}.scalar"))

    # Each dtype has a class.
    dtype_classes = {type(np.dtype(code)) for code in NUMBER_CODES}
    allowed += dtype_classes
    return allowed


def on_host(values: object) -> Any:
    """Copy tensors of torch_xla in nested values to the CPU.

    Without torch_xla, the values are returned unchanged.
    """
    if not loaded("torch_xla"):
        return values
    from .nested import map_nested

    return map_nested(_copied, values)


def state_on_host(model: nn.Module) -> dict[str, Any] | None:
    """Return the state dict of a model on torch_xla on the CPU; None for other models.

    Tied weights stay tied.
    """
    if not loaded("torch_xla"):
        return None
    if all(parameter.device.type != "xla" for parameter in model.parameters()):
        return None

    # With `keep_vars`, tied weights are the same objects.
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
