"""A training with all its checkpoints, to be damaged; nothing waits for the disk."""

import os

import pytest

from helpers.checkpoints.resumed_trainings import train
from helpers.faults.killed_trainings import EVERY_STEP


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole"), **{**EVERY_STEP, "save_total_limit": None})
