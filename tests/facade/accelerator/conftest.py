"""One run of two processes for all tests of this folder."""

import json

import pytest

from helpers import HELPERS
from helpers.processes.starting import finished_ranks

SCRIPT = HELPERS / "accelerator" / "accelerator_ranks_script.py"
SECONDS = 180  # it takes fifteen; two processes that wait for each other for ever end here


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory):
    """Results of the two processes of `accelerator_ranks_script.py`, and their folder."""
    pytest.importorskip("accelerate")
    folder = tmp_path_factory.mktemp("accelerator")
    finished_ranks(SCRIPT, str(folder), log=folder / "log", seconds=SECONDS)
    return folder, [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]
