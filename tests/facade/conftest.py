"""What the facade's tests share: one thread, and the path to the helper module beside this file."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _one_thread():
    """Sums in several threads may be added in another order: one thread makes bitwise claims fair."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
