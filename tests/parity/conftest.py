"""Share the two libraries among the parity tests; one thread."""

import functools
import os
from types import ModuleType

import pytest
import torch

from helpers.lightning.searched_once import packages_searched_once  # noqa: F401 - a fixture


@pytest.fixture(autouse=True)
def _one_thread():
    """Sums in several threads may be added in another order: one thread makes bitwise claims
    fair.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    """The library whose numbers are the standard."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    version = os.environ.get("LIGHTRAINER_FOLLOW") or "5.3.0"
    assert transformers.__version__ == version, (
        f"the parity tests compare with {version} in this run"
    )
    _ask_once_what_is_installed()
    return transformers


def _ask_once_what_is_installed() -> None:
    """For each loader the reference reads what torchdata says of itself: a fifth of the time of
    a short training.
    """
    from accelerate.utils import imports

    if hasattr(imports, "_is_package_available"):
        imports._is_package_available = functools.cache(imports._is_package_available)


@pytest.fixture(scope="session")
def ours() -> ModuleType:
    import lightrainer

    return lightrainer
