"""Keep Lightning quiet, and sums in the order of one thread, so that bitwise claims are fair."""

import pytest
import torch

from lightrainer.lightning_modules.internals import lightning_internals


@pytest.fixture(autouse=True)
def _quiet_and_single_threaded():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with lightning_internals.quiet():
        yield
    torch.set_num_threads(before)
