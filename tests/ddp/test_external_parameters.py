"""Weights of a loss are trained in two processes as in one, and resumed."""

import json

import pytest

from helpers import HELPERS
from helpers.ddp.external_parameters_script import SHARDED, LossWithHead, make_trainer, values
from helpers.processes.starting import finished_ranks


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside_model")
    script = HELPERS / "ddp" / "external_parameters_script.py"
    finished_ranks(script, str(folder), log=folder / "log", seconds=240, library="lightrainer")
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(2)]


def test_weights_of_a_loss_are_those_of_one_process(found, tmp_path):
    loss = LossWithHead()
    make_trainer(tmp_path, loss, save_strategy="no").train()
    for rank in found:
        assert rank["whole"] == pytest.approx(values(loss), rel=1e-5)
        assert rank["resumed"] == rank["whole"] == found[0]["whole"]


@pytest.mark.parametrize("name", SHARDED)
def test_weights_beside_a_sharded_model_are_refused(found, name):
    for rank in found:
        assert "SGD trains 2 parameters that are not part of the model" in rank[name]
