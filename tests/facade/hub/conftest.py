"""A Hub on this machine for each test, and the real client pointed at it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.hub.hub_client import point_at
from helpers.hub.hub_server import HubServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """2026-01: the client sends large files in a way that httpx does not like any more; it is
    none of our business.
    """
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents:
            item.add_marker(
                pytest.mark.filterwarnings(
                    "ignore:Use 'content=<...>' to upload:DeprecationWarning"
                )
            )


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """The stand-in, running; `huggingface_hub` talks to it only."""
    with HubServer() as server:
        point_at(server, monkeypatch, tmp_path / "hub_cache")
        yield server
