"""For folders whose tests make Trainers of Lightning: each would look into every package that is
installed.
"""

import pytest

from lightrainer.lightning_modules.internals import lightning_internals


@pytest.fixture(scope="session", autouse=True)
def packages_searched_once():
    """They are looked into once, as for our own Trainer: 8 ms less for each of thousands."""
    with lightning_internals.packages_searched_once():
        yield
