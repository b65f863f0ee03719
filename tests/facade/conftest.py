"""Run the tests of the facade in one thread."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """Sums in several threads may be added in another order: one thread makes bitwise claims
    fair.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
