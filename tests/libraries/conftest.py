"""Leaves these tests out unless they are asked for."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """They take minutes, and an environment of their own: `make test-libraries`."""
    here = [item for item in items if HERE in item.path.parents]
    for item in here:
        item.add_marker("libraries")
    if "libraries" in (config.getoption("markexpr") or ""):
        return
    config.hook.pytest_deselected(items=here)
    items[:] = [item for item in items if item not in here]
