"""The real client of the Hub, pointed at the stand-in."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.hub.hub_server import TOKEN, HubServer


def point_at(server: HubServer, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Let `huggingface_hub` talk to the stand-in only, and not sleep long.

    The client reads its environment when it is imported, which may have been long ago, so the
    variables are set and what became of them is as well. `test_environment.py` does it by the
    environment alone.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import _http

    from lightrainer.facade.hub import errors

    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        server.url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    # the stand-in speaks the older protocol
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(errors, "RETRY_PAUSES", (0.0, 0.01))
    # between its attempts
    monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda seconds: None))
