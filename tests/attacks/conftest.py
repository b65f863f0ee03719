"""Checkpoints to attack; one thread."""

import shutil
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """Sums in several threads may be added in another order: one thread makes bitwise claims
    fair.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def genuine(tmp_path_factory) -> Path:
    """A checkpoint with every file that one may hold; see `write_whole_checkpoint`. Not to be
    changed.
    """
    from helpers.checkpoints.harmful_checkpoints import write_whole_checkpoint

    return write_whole_checkpoint(tmp_path_factory.mktemp("genuine"))


@pytest.fixture
def checkpoint(genuine, tmp_path) -> Path:
    """A copy of it, `out/checkpoint-2`, to be changed."""
    return Path(shutil.copytree(genuine, tmp_path / "out" / "checkpoint-2"))


@pytest.fixture
def evil(tmp_path):
    """Makes a folder when it is unpickled."""
    from helpers.checkpoints.harmful_checkpoints import Evil

    return Evil(tmp_path / "evil")
