"""The smallest searches: a tiny model, a rate to find, and no talk."""

import optuna
import pytest
import torch


@pytest.fixture(autouse=True)
def _quiet():
    """Optuna says a line for each trial."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
