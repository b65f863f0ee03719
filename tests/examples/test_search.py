"""The examples of studies run, in one process and in two."""

import contextlib
import importlib
import os
import subprocess
import sys
from pathlib import Path

import optuna
import psutil
import pytest

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


def test_a_trainer_for_each_trial():
    study = importlib.import_module("trainer_per_trial").main(n_trials=6)
    states = [trial.state.name for trial in study.trials]
    assert {"COMPLETE", "PRUNED"} == set(states)
    pruned = study.trials[states.index("PRUNED")]
    assert 1 <= len(pruned.intermediate_values) < 4


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec", "ignore:The number of training")
def test_pruning_under_plain_lightning():
    found = importlib.import_module("lightning_pruning").main(n_trials=6)
    assert found["pruned"] >= 1
    assert found["best"] < 1.0


def test_pruning_under_plain_lightning_in_two_processes(tmp_path):
    """A pruned trial ends in both; if only one ended, the other would wait for it for ever."""
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc_per_node=2"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", str(FOLDER / "lightning_pruning.py")]
    log = tmp_path / "log.txt"
    with log.open("w") as stream:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=subprocess.STDOUT)
        try:
            code = process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            for member in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
            process.wait()
            pytest.fail(f"two processes were not done after {SECONDS} s\n{log.read_text()[-4000:]}")
    said = log.read_text()
    assert code == 0, said[-4000:]
    found = eval(next(line for line in said.splitlines() if line.startswith("{'best'")))
    assert found["pruned"] >= 1
