"""Leaves these tests out unless they are asked for, and says at the end what was compared."""

from pathlib import Path

import pytest
from library_runs import COMPARED

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """They take minutes, and an environment of their own: `make test-libraries`."""
    here = [item for item in items if HERE in item.path.parents]
    for item in here:
        item.add_marker("libraries")
    if "libraries" in (config.getoption("markexpr") or ""):
        return
    config.hook.pytest_deselected(items=here)
    items[:] = [item for item in items if item not in here]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print which versions were trained with, and how much of it was compared."""
    if COMPARED:
        terminalreporter.section("trained on the reference and on ours")
        for line in COMPARED:
            terminalreporter.write_line(line)
