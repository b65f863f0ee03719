"""The smallest searches: a tiny model, a rate to find, and no talk."""

import optuna
import pytest


@pytest.fixture(autouse=True)
def _quiet():
    """Optuna says a line for each trial."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)
