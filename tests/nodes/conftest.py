"""Leave the long tests of several machines out unless they are asked for."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out marked tests, which take two minutes: `make test-nodes`, which runs all of this folder."""
    if "nodes" in (config.getoption("markexpr") or ""):
        return
    left_out = [item for item in items if HERE in item.path.parents and item.get_closest_marker("nodes")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
