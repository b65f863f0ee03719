"""Leave out the walk over every class of transformers unless it is asked for."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out marked tests, which take ten minutes: `make test-promises`, which runs all of this folder."""
    if "promises" in (config.getoption("markexpr") or ""):
        return
    left_out = [item for item in items if HERE in item.path.parents and item.get_closest_marker("promises")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
