"""A repository on the Hub, through the real client: the requests to the server, and the messages
when it refuses.
"""

import itertools
import sys
from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from huggingface_hub.utils import close_session

from helpers.hub.hub_server import TOKEN
from lightrainer.facade.hub import Repository, errors, repository
from lightrainer.facade.hub.repository import is_repository_name

httpx = sys.modules[HfHubHTTPError.__mro__[1].__module__.partition(".")[0]]
"""httpx2, with huggingface_hub 2."""


@pytest.fixture
def folder(tmp_path):
    source = tmp_path / "folder"
    (source / "inner").mkdir(parents=True)
    (source / "config.json").write_text("{}")
    (source / "model.safetensors").write_bytes(b"weights")
    (source / "inner" / "words.txt").write_text("a b")
    return source


@pytest.mark.parametrize("revision", [None, "main", "0" * 40, "refs/pr/1", "v1"])
def test_repository_creates_no_existing_or_invalid_branch(hub, revision):
    hub.make("me/model").tags.append("v1")
    Repository("me/model", revision=revision).create()
    assert hub.asked("POST .*/branch/") == []


def test_repository_whole_folder_replaces_the_older_one(hub, folder):
    old = {"kept.txt": b"1", "last/shard.bin": b"2", "last/config.json": b"3"}
    hub.make("me/model", **old)
    Repository("me/model").upload(folder, "newer", path_in_repo="last", delete_missing=True)
    names = [
        ".gitattributes",
        "kept.txt",
        "last/config.json",
        "last/inner/words.txt",
        "last/model.safetensors",
    ]
    assert sorted(hub.repos["me/model"].files()) == names


def test_repository_folder_round_trip(hub, folder):
    repository = Repository("me/model").create()
    repository.upload(folder, "first", path_in_repo="last")
    commit = repository.newest_commit()
    (folder / "config.json").write_text('{"changed": 1}')
    repository.upload(folder, "second", path_in_repo="last")
    downloaded = repository.download("last", commit)
    assert (downloaded / "config.json").read_text() == "{}"
    assert (downloaded / "inner" / "words.txt").read_text() == "a b"
    assert not repository.download("other", commit).exists()


REMEDIES = {
    401: "hf auth login",
    403: "the role `write`",
    404: "hub_revision",
    429: "Save less often",
}


@pytest.mark.parametrize("status", list(REMEDIES))
def test_repository_refusal_gives_advice(hub, status):
    hub.refuse("repos/create", status)
    hub.refuse("GET /api/models", 404)
    with pytest.raises(HfHubHTTPError) as error:
        Repository("me/model", token=TOKEN).create()
    assert error.value.response.status_code in (status, 404)
    assert "'me/model'" in str(error.value)
    assert REMEDIES[error.value.response.status_code] in str(error.value)


def test_repository_invalid_name(hub):
    with pytest.raises(HFValidationError, match="repository is 'a/b/c'"):
        Repository("a/b/c").create()
    names = {
        "gpt2": True,
        "me/model": True,
        "a/b/c": False,
        "./model": False,
        "": False,
        "with blank": False,
    }
    assert {name: is_repository_name(name) for name in names} == names


STEPS = [
    "repos/create",
    "validate-yaml",
    "preupload",
    "objects/batch",
    "PUT /storage",
    "commit/main",
]


def created_and_uploaded(folder):
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    Repository("me/model").create().upload(folder, "first")


@pytest.mark.parametrize("step", STEPS)
def test_troubles_that_pass_are_not_noticed(hub, folder, step):
    hub.refuse(step, 429, times=1)
    hub.break_off(step, times=1)
    created_and_uploaded(folder)
    assert hub.repos["me/model"].files()["model.safetensors"] == b"weights"
    assert len(hub.asked(step)) >= 2


def test_repository_lasting_trouble_is_raised(hub, folder):
    hub.refuse("commit/main", 503)
    with pytest.raises(HfHubHTTPError, match="503"):
        created_and_uploaded(folder)
    assert len(hub.asked("commit/main")) == 1 + len(errors.RETRY_PAUSES)


def test_repository_lasting_trouble_is_waited_for_once(hub, folder, monkeypatch):
    """The client has repeated the request for a while when the second attempt fails."""
    hub.refuse("commit/main", 503)
    clock = itertools.count(step=errors.MAX_RETRY_SECONDS + 1)
    monkeypatch.setattr(
        errors, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None)
    )
    with pytest.raises(HfHubHTTPError, match="503"):
        created_and_uploaded(folder)
    assert len(hub.asked("commit/main")) == 2


@pytest.fixture
def new_connections():
    close_session()
    yield
    close_session()


def test_repository_silent_server_times_out(hub, new_connections, monkeypatch):
    monkeypatch.setattr(repository, "SILENCE_TIMEOUT", 0.2)
    with hub.held("repos/create"), pytest.raises(httpx.ReadTimeout) as error:
        Repository("me/model").create()
    assert errors.is_transient(error.value)
    assert len(hub.asked("repos/create")) > len(errors.RETRY_PAUSES)


def test_repository_reports_offline_mode_first(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OfflineModeIsEnabled, match="HF_HUB_OFFLINE"):
        Repository("me/model").create()
    assert issubclass(OfflineModeIsEnabled, ConnectionError)
    assert Repository("me/model").license_of("gpt2") is None
    assert hub.requests == []


def test_repository_license_of_another_model(hub):
    hub.make("them/base", **{"README.md": b"---\nlicense: apache-2.0\n---\n"})
    hub.make("them/other")
    repository = Repository("me/model")
    assert [repository.license_of(name) for name in ("them/base", "them/other", "them/none")] == [
        "apache-2.0",
        None,
        None,
    ]
    hub.break_off("GET /api/models/them/base")
    assert repository.license_of("them/base") is None
