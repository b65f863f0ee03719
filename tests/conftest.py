"""What all tests share: each finds the package's logger as a fresh process has it."""

import logging

import pytest


@pytest.fixture(autouse=True)
def _fresh_logger():
    """A Trainer sets the level that its arguments ask for, and it stays set."""
    logger = logging.getLogger("lightrainer")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers
