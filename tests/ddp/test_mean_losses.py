"""A loss that is a mean over its micro-batch counts by its labels under every strategy, or by its
rows.
"""

import json

import pytest

from helpers import HELPERS
from helpers.ddp.mean_loss_script import (
    STRATEGIES,
    UNEVEN_ROWS,
    evaluated_experts,
    logs,
    logs_of_uneven_rows,
)
from helpers.processes.starting import finished_ranks

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mean_losses")
    script = HELPERS / "ddp" / "mean_loss_script.py"
    finished_ranks(script, str(folder), log=folder / "log", seconds=240, library="transformers")
    return json.loads((folder / "found.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return logs(tmp_path_factory.mktemp("whole"), 8, 1)


@pytest.mark.parametrize("divided", ["4 x 1", "2 x 2"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_mean_losses_of_two_processes_equal_one_batch(found, whole, strategy, divided):
    for step, expected in zip(found[f"{strategy}, {divided}"], whole, strict=True):
        assert step == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", UNEVEN_ROWS)
def test_mean_losses_of_uneven_rows_equal_one_process(found, tmp_path, kind):
    """Two batches of different sizes make a step, of two processes or of one that accumulates."""
    alone = logs_of_uneven_rows(tmp_path, kind, 2)
    for step, expected in zip(found[kind], alone, strict=True):
        assert step == pytest.approx(expected, rel=1e-5)


def test_loss_of_routers_counts_once_in_an_evaluation(found, tmp_path):
    assert found["experts"] == pytest.approx(evaluated_experts(tmp_path, 8), rel=1e-5)
