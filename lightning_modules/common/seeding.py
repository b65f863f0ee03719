"""Seed all random generators, and save their states in a checkpoint's `rng_state*.pth`."""

from __future__ import annotations

import ctypes
import logging
import operator
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .libraries import loaded
from .torch_files import load_torch

if TYPE_CHECKING:
    from types import ModuleType

logger = logging.getLogger(__name__)

_SEEDS = 2**32

# Makes the kernels of accelerator libraries run in a fixed order.
DETERMINISTIC_ENVIRONMENT = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "ASCEND_LAUNCH_BLOCKING": "1",
    "HCCL_DETERMINISTIC": "1",
    "FLASH_ATTENTION_DETERMINISTIC": "1",
}


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed the random generators of Python, NumPy and torch, on every device.

    Works like `transformers.set_seed`.

    Args:
        seed: 0 to 2**32 - 1, a whole number of any type.
        deterministic: also let torch use deterministic algorithms only.

    Raises:
        ValueError: when the seed is out of range, before any generator is touched.
        TypeError: when it is not a whole number.
    """
    seed = operator.index(seed)
    if not 0 <= seed < _SEEDS:
        raise ValueError(
            f"`seed` is {seed}, but numpy's generator accepts only seeds from 0 to {_SEEDS - 1}."
        )
    random.seed(seed)
    np.random.seed(seed)
    if torch.accelerator.current_accelerator() is None:
        # `torch.manual_seed` would record the call stack three times.
        torch.default_generator.manual_seed(seed)
    else:
        # It seeds the accelerators too, also those not yet initialised.
        torch.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def enable_full_determinism(seed: int, warn_only: bool = False) -> None:
    """Seed all random generators, and give up speed for repeatable results.

    Works like `transformers.enable_full_determinism`. torch uses deterministic algorithms only, and
    cuDNN and CUDA are set up so that they have them.

    Args:
        seed: see `set_seed`.
        warn_only: warn instead of raising where torch has no deterministic algorithm.

    Raises:
        ValueError, TypeError: see `set_seed`.
    """
    set_seed(seed)
    os.environ.update(DETERMINISTIC_ENVIRONMENT)
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def seed_worker(worker_id: int, num_workers: int, rank: int) -> None:
    """Seed the random generators of a worker of a data loader: its `worker_init_fn`.

    Works like `transformers.trainer_utils.seed_worker`.

    Pass it through `functools.partial`. The seed is torch's own in this worker, which differs
    between workers and epochs, plus `num_workers` for each rank. It wraps around at 2**32, where
    the reference fails.

    Args:
        worker_id: index of the worker, already part of torch's seed.
        num_workers: workers of each process.
        rank: index of the process.
    """
    worker_seed = torch.initial_seed() % _SEEDS
    set_seed((num_workers * rank + worker_seed) % _SEEDS)


def capture_rng_state(distributed: bool) -> dict[str, Any]:
    """Return the states of all random generators of this process.

    Args:
        distributed: several processes train; includes the states of all CUDA devices.

    Returns:
        "python" and "numpy" (tuples), "cpu" (a byte tensor) and, with CUDA, "cuda": a byte tensor,
        or a list of one per device when `distributed`. Other devices have their own names: "mps"
        and "xla".
    """
    state = capture_host_rng()
    if torch.cuda.is_available():
        if distributed:
            state["cuda"] = torch.cuda.get_rng_state_all()
        else:
            state["cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    xla = _xla()
    if xla is not None:
        state["xla"] = xla.get_rng_state()
    return state


def capture_host_rng() -> dict[str, Any]:
    """Return the states of the CPU generators, from which datasets and collators draw."""
    return {name: capture() for name, (capture, _) in _GENERATORS.items()}


def restore_host_rng(state: Mapping[str, Any]) -> None:
    """Restore the states of `capture_host_rng`."""
    for name, (_, restore) in _GENERATORS.items():
        restore(state[name])


@contextmanager
def host_rng_untouched() -> Iterator[None]:
    """Restore the CPU generators after the block."""
    state = capture_host_rng()
    try:
        yield
    finally:
        restore_host_rng(state)


def same_rng(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Return whether two results of `capture_host_rng` are equal."""
    if left["python"] != right["python"] or not torch.equal(left["cpu"], right["cpu"]):
        return False

    # The words of numpy's generator are an array; its position and spare number follow.
    _, left_words, *left_rest = left["numpy"]
    _, right_words, *right_rest = right["numpy"]
    return np.array_equal(left_words, right_words) and left_rest == right_rest


def restore_rng_state(state: Mapping[str, Any], distributed: bool) -> None:
    """Restore the states of the random generators of this process.

    Warns of each generator whose state is missing.

    Args:
        state: from `capture_rng_state` or `load_rng_file`, or of the reference.
        distributed: see `capture_rng_state`.

    Raises:
        ValueError: when the state of a CPU generator is damaged.
    """
    for name, (_, restore) in _GENERATORS.items():
        if name not in state:
            _warn_lost(name, "the checkpoint does not have its state")
            continue
        try:
            restore(state[name])
        except Exception as error:
            raise ValueError(
                f"The state of the random generator {name!r} cannot be set: {error}"
            ) from error

    if torch.cuda.is_available():
        if distributed:
            _restore_device("cuda", state, torch.cuda.set_rng_state_all)
        else:
            _restore_device("cuda", state, torch.cuda.set_rng_state)
    if torch.backends.mps.is_available():
        _restore_device("mps", state, torch.mps.set_rng_state)
    xla = _xla()
    if xla is not None and "xla" in state:
        xla.set_rng_state(state["xla"])


def _xla() -> ModuleType | None:
    """Return the module of torch_xla with its device's generator, if it is loaded."""
    return loaded("torch_xla.core.xla_model")


def _restore_device(name: str, state: Mapping[str, object], restore: Callable[[Any], None]) -> None:
    """Restore the generators of a kind of device.

    A mismatch is a warning, because the checkpoint may come from another kind of device.
    """
    if name not in state:
        _warn_lost(name, "the checkpoint does not have its state")
        return
    try:
        restore(state[name])
    except Exception as error:
        _warn_lost(name, f"its state could not be set ({type(error).__name__}: {error})")


def _warn_lost(name: str, reason: str) -> None:
    logger.warning(
        "The random generator %r is not restored because %s: the training draws other numbers "
        "than without the interruption.",
        name,
        reason,
    )


_MT19937_BYTES = 624 * 4 + 4
"""Size of the state of numpy's Mersenne Twister: its words, and the position in them."""


class _NumpyGenerator:
    """numpy's global generator, whose state is read again only after it has moved.

    `np.random.get_state` takes 80 us, a comparison of its words 1 us, and loaders ask before each
    batch.
    """

    def __init__(self) -> None:
        self._words = b""
        self._state: Any = None
        self._has_spare_normal = False
        """Whether the second of two normal numbers is left, whose draw moves no word."""

    def get_state(self) -> Any:
        """Return the state of NumPy's global generator, as `np.random.get_state` does."""
        numpy_random: Any = np.random  # numpy declares no type of `get_bit_generator`
        generator = numpy_random.get_bit_generator()
        if type(generator) is not np.random.MT19937:
            return np.random.get_state()

        words = ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
        if words != self._words or self._has_spare_normal:
            self._words = words
            self._state = np.random.get_state()
            self._has_spare_normal = bool(self._state[3])
        return self._state

    def set_state(self, state: Any) -> None:
        """Set the state of NumPy's global generator, as `np.random.set_state` does."""
        # Forgotten, because two states may differ in nothing but the spare normal number.
        self._words = b""
        np.random.set_state(state)


_numpy_generator = _NumpyGenerator()

_GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "python": (random.getstate, random.setstate),
    "numpy": (_numpy_generator.get_state, _numpy_generator.set_state),
    "cpu": (torch.get_rng_state, torch.set_rng_state),
}


def load_rng_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """As the reference reads `rng_state.pth`: nothing is unpickled but tensors, numpy arrays and
    plain values.

    Args:
        path: a file of this library or of the reference.

    Raises:
        FileNotFoundError: when the file does not exist.
        ValueError: when it is damaged, or does not hold a dict of such values.
    """
    state = load_torch(path)
    if not isinstance(state, dict):
        raise ValueError(
            f"{path} holds a {type(state).__name__}, but the states of random generators are a "
            "dict."
        )
    return state
