"""The functions of the Hub's client that tests and subclasses replace where the Trainer is
defined.
"""

from types import SimpleNamespace

import pytest
from huggingface_hub import constants

import lightrainer.facade.trainer as home
from helpers.trainer.tiny_trainings import make_trainer


@pytest.fixture
def _offline(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.mark.usefixtures("_offline")
def test_replaced_functions_are_called_exclusively(tmp_path, monkeypatch):
    """Offline mode refuses nothing that is not going to ask the Hub."""
    created, uploads = [], []
    monkeypatch.setattr(
        home,
        "create_repo",
        lambda name, **how: created.append(name) or SimpleNamespace(repo_id="me/m"),
    )
    monkeypatch.setattr(home, "upload_folder", lambda **what: uploads.append(what))
    pushing = make_trainer(tmp_path / "out", push_to_hub=True, hub_model_id="m", hub_revision="b")
    pushing.push_to_hub()
    assert (created, pushing.hub_model_id) == (["m"], "me/m")
    (upload,) = uploads
    assert (upload["repo_id"], upload["folder_path"], upload["revision"]) == (
        "me/m",
        tmp_path / "out",
        "b",
    )


@pytest.mark.usefixtures("_offline")
def test_replaced_init_hf_repo_of_a_subclass_is_called(tmp_path):
    class Own(home.Trainer):
        def init_hf_repo(self, token=None):
            self.hub_model_id = "me/own"

    assert make_trainer(tmp_path, Own, push_to_hub=True).hub_model_id == "me/own"
