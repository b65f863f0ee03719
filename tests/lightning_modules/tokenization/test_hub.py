"""Tokenizers from the Hub, against a stand-in on this machine; the cache does without it."""

import subprocess
import sys
import traceback

import pytest

from helpers import HELPERS
from helpers.hub.hub_client import point_at
from helpers.hub.hub_server import HubServer
from helpers.tokenization.trained_tokenizers import both_tokenizers
from lightrainer import AutoTokenizer, PreTrainedTokenizerFast

NAME = "me/words"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with HubServer() as server:
        point_at(server, monkeypatch, tmp_path / "cache")
        yield server


def fill(hub, folder, **options):
    mine, _ = both_tokenizers("WordPiece", **options)
    mine.chat_template = "a template"
    mine.save_pretrained(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub.make(NAME, **{**files, "model.safetensors": b"large"})
    return mine


def test_from_the_hub_then_from_the_cache(hub, tmp_path, monkeypatch):
    """Only the tokenizer's files are downloaded, and once."""
    mine = fill(hub, tmp_path / "folder")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(NAME)
    assert tokenizer("some text") == mine("some text")
    assert tokenizer.name_or_path == NAME
    assert tokenizer.chat_template == "a template"
    assert hub.asked("safetensors") == []
    downloads = len(hub.asked("GET .*resolve"))
    assert downloads == 3
    AutoTokenizer.from_pretrained(NAME)
    assert len(hub.asked("GET .*resolve")) == downloads
    before = len(hub.requests)
    PreTrainedTokenizerFast.from_pretrained(NAME, local_files_only=True)
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert AutoTokenizer.from_pretrained(NAME)("some text") == mine("some text")
    assert len(hub.requests) == before


def test_tokenizer_without_the_hub_uses_the_cache(hub, tmp_path):
    mine = fill(hub, tmp_path / "folder")
    PreTrainedTokenizerFast.from_pretrained(NAME)
    hub.refuse(".*", 503)
    assert PreTrainedTokenizerFast.from_pretrained(NAME)("some text") == mine("some text")
    with pytest.raises(OSError, match="'me/other' is not available from the Hub: ") as error:
        PreTrainedTokenizerFast.from_pretrained("me/other")
    # Older clients name the status in the cause only.
    assert "503" in "".join(traceback.format_exception(error.value))


def test_tokenizer_that_is_not_on_the_hub_is_named(hub, tmp_path, monkeypatch):
    fill(hub, tmp_path / "folder")
    load = PreTrainedTokenizerFast.from_pretrained
    with pytest.raises(OSError, match="is not available from the Hub: 404"):
        load(NAME, revision="v2")
    hub.make("me/empty", **{"config.json": b"{}"})
    with pytest.raises(OSError, match=r"'me/empty' has no tokenizer.json"):
        load("me/empty")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match=r"HF_HUB_OFFLINE"):
        load(NAME)


def test_revisions_and_subfolders(hub, tmp_path):
    mine = fill(hub, tmp_path / "folder")
    repo = hub.repos[NAME]
    moved = {f"inner/{name}": content for name, content in repo.files().items()}
    hub.make("me/nested", **moved)
    assert PreTrainedTokenizerFast.from_pretrained("me/nested", subfolder="inner")("a b") == mine(
        "a b"
    )
    commit = repo.branches["main"][-1].oid
    assert PreTrainedTokenizerFast.from_pretrained(NAME, revision=commit)("a b") == mine("a b")


def test_tokenizer_needs_no_transformers(tmp_path):
    """In a process in which it cannot be imported: made, saved, loaded, called, padded, chatted."""
    script = HELPERS / "tokenization" / "without_transformers_script.py"
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["works"]
