"""A restarted job recognizes its own checkpoints."""

import json

import pytest

from lightrainer.lightning_modules.checkpoints import (
    last_intact_checkpoint,
    owners,
    write_manifest,
)
from lightrainer.lightning_modules.checkpoints.manifest import read_manifest


@pytest.fixture(autouse=True)
def job(monkeypatch):
    monkeypatch.setattr(owners, "_launchers", ())
    monkeypatch.setattr(owners, "_training_number", 0)


def written(folder):
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    write_manifest(folder)
    return folder


def test_attempts_and_processes_of_one_launcher_are_one_job(monkeypatch):
    jobs = set()
    for place in ("attempt_0/0", "attempt_0/1", "attempt_3/0"):
        monkeypatch.setenv(
            "TORCHELASTIC_ERROR_FILE", f"/tmp/torchelastic_a/none_b/{place}/error.json"
        )
        jobs.add(owners.current_job())
    assert len(jobs) == 1
    monkeypatch.setenv(
        "TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_a/none_c/attempt_0/0/error.json"
    )
    assert owners.current_job() not in jobs
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    assert owners.current_job() is None


def test_checkpoint_belongs_to_the_training_that_wrote_it(tmp_path):
    owners.begin_training(["a:1", "b:2"])
    first = written(tmp_path / "checkpoint-1")
    assert owners.is_of_this_training(first)
    owners.begin_training(["a:1", "b:2"])
    assert not owners.is_of_this_training(first)  # this is the second one of the script
    second = written(tmp_path / "checkpoint-2")
    owners._training_number = 0
    owners.begin_training(["b:2", "c:3"])  # one machine was exchanged
    assert owners.is_of_this_training(first)
    assert not owners.is_of_this_training(second)
    owners._training_number = 0
    owners.begin_training(["c:3"])
    assert not owners.is_of_this_training(first)


def test_checkpoint_without_a_launcher_is_not_marked(tmp_path):
    folder = written(tmp_path / "checkpoint-1")
    assert "job" not in json.loads((folder / "_manifest.json").read_text())
    assert not owners.is_of_this_training(folder)
    assert not owners.is_of_this_training(tmp_path / "none")


def test_newest_checkpoint_of_a_job(tmp_path):
    owners.begin_training(["a:1"])
    for step in (1, 2):
        (written(tmp_path / f"checkpoint-{step}") / "trainer_state.json").write_text("{}")
    newest = last_intact_checkpoint(
        tmp_path, training_state=False, is_candidate=lambda path: path.name != "checkpoint-2"
    )
    assert newest == str(tmp_path / "checkpoint-1")
    # older versions read it as before
    assert read_manifest(newest).sizes == {"model.safetensors": 10}


@pytest.mark.parametrize(("text", "count"), [("2", 2), ("", 0), ("x", 0), (None, 0)])
def test_how_often_it_was_started_again(monkeypatch, text, count):
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    if text is not None:
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", text)
    assert owners.restarts() == count
