"""Seed random number generators, and save and restore their states."""

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

# Environment variables that make accelerator libraries deterministic.
DETERMINISTIC_ENVIRONMENT = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "ASCEND_LAUNCH_BLOCKING": "1",
    "HCCL_DETERMINISTIC": "1",
    "FLASH_ATTENTION_DETERMINISTIC": "1",
}


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed the random number generators of Python, NumPy and torch, on all devices.

    Works like `transformers.set_seed`.

    Args:
        seed: an integer of any type, from 0 to 2**32 - 1.
        deterministic: also make torch use only deterministic algorithms.

    Raises:
        ValueError: the seed is out of range. No generator has been seeded.
        TypeError: the seed is not an integer.
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
        # This seeds accelerators too, including those not initialised yet.
        torch.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def enable_full_determinism(seed: int, warn_only: bool = False) -> None:
    """Seed all random number generators, and make results reproducible at the cost of speed.

    Works like `transformers.enable_full_determinism`. torch, cuDNN and CUDA are configured to use
    only deterministic algorithms.

    Args:
        seed: see `set_seed`.
        warn_only: warn instead of raising if torch has no deterministic algorithm.

    Raises:
        ValueError, TypeError: see `set_seed`.
    """
    set_seed(seed)
    os.environ.update(DETERMINISTIC_ENVIRONMENT)
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def seed_worker(worker_id: int, num_workers: int, rank: int) -> None:
    """Seed the random number generators of a data loader worker, as its `worker_init_fn`.

    Works like `transformers.trainer_utils.seed_worker`.

    Pass it with `functools.partial`. The seed is torch's seed of this worker, which differs between
    workers and epochs, plus `num_workers * rank`. It wraps around at 2**32, where the reference
    fails.

    Args:
        worker_id: index of the worker, which is already part of torch's seed.
        num_workers: number of workers of each process.
        rank: index of the process.
    """
    worker_seed = torch.initial_seed() % _SEEDS
    set_seed((num_workers * rank + worker_seed) % _SEEDS)


def capture_rng_state(distributed: bool) -> dict[str, Any]:
    """Return the states of all random number generators of this process.

    Args:
        distributed: whether several processes train. Then the states of all CUDA devices are
            included.

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
def preserved_host_rng() -> Iterator[None]:
    """Restore the CPU generators after the `with` block."""
    state = capture_host_rng()
    try:
        yield
    finally:
        restore_host_rng(state)


def equal_host_rng(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Return whether two results of `capture_host_rng` are equal."""
    if left["python"] != right["python"] or not torch.equal(left["cpu"], right["cpu"]):
        return False

    # NumPy's state contains an array of words, followed by other values.
    _, left_words, *left_rest = left["numpy"]
    _, right_words, *right_rest = right["numpy"]
    return np.array_equal(left_words, right_words) and left_rest == right_rest


def restore_rng_state(state: Mapping[str, Any], distributed: bool) -> None:
    """Restore the states of the random number generators of this process.

    Warns of each generator whose state is missing.

    Args:
        state: the result of `capture_rng_state` or `load_rng_file`, or a state of the reference.
        distributed: see `capture_rng_state`.

    Raises:
        ValueError: the state of a CPU generator is damaged.
    """
    for name, (_, restore) in _GENERATORS.items():
        if name not in state:
            _warn_lost(name, "the checkpoint does not have its state")
            continue
        try:
            restore(state[name])
        except Exception as error:
            raise ValueError(
                f"The state of the random number generator {name!r} cannot be set: {error}"
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
    """Return torch_xla's module with the device RNG, if it is loaded."""
    return loaded("torch_xla.core.xla_model")


def _restore_device(name: str, state: Mapping[str, object], restore: Callable[[Any], None]) -> None:
    """Restore the generators of a device type.

    Only warns on failure, because the checkpoint may come from another type of device.
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
        "The random number generator %r is not restored because %s. Results will differ from an "
        "uninterrupted training.",
        name,
        reason,
    )


_MT19937_BYTES = 624 * 4 + 4
"""Size of the state of numpy's Mersenne Twister: its words, and the position in them."""


class _NumpyGenerator:
    """Caches the state of NumPy's global generator until it changes.

    `np.random.get_state` takes 80 us and comparing the words takes 1 us. Loaders request the state
    before each batch.
    """

    def __init__(self) -> None:
        self._words = b""
        self._state: Any = None
        self._has_spare_normal = False
        """Whether a second normal number is cached, whose draw does not change the words."""

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
        # Invalidate the cache, because two states may differ only in the cached normal number.
        self._words = b""
        np.random.set_state(state)


_numpy_generator = _NumpyGenerator()

_GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "python": (random.getstate, random.setstate),
    "numpy": (_numpy_generator.get_state, _numpy_generator.set_state),
    "cpu": (torch.get_rng_state, torch.set_rng_state),
}


def load_rng_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Load `rng_state.pth`, as the reference does, but unpickle only tensors, NumPy arrays and
    plain values.

    Args:
        path: a file of this library or of the reference.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is damaged, or does not contain a dict of such values.
    """
    state = load_torch(path)
    if not isinstance(state, dict):
        raise ValueError(
            f"{path} holds a {type(state).__name__}, but expected a dict of the states of random "
            "number generators."
        )
    return state
