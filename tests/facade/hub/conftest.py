"""A Hub on this machine for each test, and the real client pointed at it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hub_server import TOKEN, HubServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """2026-01: the client sends large files in a way that httpx does not like any more; it is none of our business."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload:DeprecationWarning"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """The stand-in, running; `huggingface_hub` talks to it and to nobody else, and does not sleep long.

    The client reads its environment when it is imported, which may have been long ago, so the variables are set and
    what became of them is as well. `test_environment.py` does it by the environment alone.
    """
    with HubServer() as server:
        point_at(server, monkeypatch, tmp_path / "hub_cache")
        yield server


def point_at(server: HubServer, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    from huggingface_hub import constants
    from huggingface_hub.utils import _http

    from lightrainer.facade.hub import errors

    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the stand-in speaks the older protocol
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(errors, "PAUSES", (0.0, 0.01))
    monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda seconds: None))  # between its attempts
