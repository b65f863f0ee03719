"""Run the tests of callbacks in one thread."""

import pytest

from helpers.lightning.searched_once import packages_searched_once  # noqa: F401 - a fixture


@pytest.fixture(autouse=True)
def _one_thread():
    """Sums in several threads may be added in another order: one thread makes bitwise claims
    fair.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
