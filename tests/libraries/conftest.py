"""Report at the end what was compared."""

import pytest

from helpers.libraries.library_runs import COMPARED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print which versions were trained with, and how much of it was compared."""
    if COMPARED:
        terminalreporter.section("trained on the reference and on ours")
        for line in COMPARED:
            terminalreporter.write_line(line)
