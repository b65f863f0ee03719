"""The examples of studies run, in one process and in two."""

import importlib
import sys
from pathlib import Path

import optuna
import pytest

from helpers.processes.starting import forked_torchrun

FOLDER = Path(__file__).parents[2] / "examples" / "search"
SECONDS = 150


@pytest.fixture(autouse=True)
def _beside_the_examples(monkeypatch):
    """As they are run: their folder is the first to look in, and their modules are theirs."""
    verbosity = optuna.logging.get_verbosity()
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("data", "trainer_per_trial", "lightning_pruning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    optuna.logging.set_verbosity(verbosity)


def test_search_example_creates_a_trainer_per_trial():
    study = importlib.import_module("trainer_per_trial").main(n_trials=6)
    states = [trial.state.name for trial in study.trials]
    assert {"COMPLETE", "PRUNED"} == set(states)
    pruned = study.trials[states.index("PRUNED")]
    assert 1 <= len(pruned.intermediate_values) < 4


def test_pruning_under_plain_lightning_in_two_processes(tmp_path):
    """A pruned trial ends in both; if only one ended, the other would wait for it for ever."""
    code, output = forked_torchrun(
        FOLDER / "lightning_pruning.py", log=tmp_path / "log.txt", seconds=SECONDS
    )
    assert code == 0, output
    result = eval(next(line for line in output.splitlines() if line.startswith("{'best'")))
    assert result["pruned"] >= 1
