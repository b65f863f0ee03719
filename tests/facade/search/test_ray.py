"""A real search of Ray on this machine; skipped where Ray is not installed
(`pip install "lightrainer[ray]"`).
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from helpers import HELPERS
from helpers.search.small_searches import searcher, space

SCRIPT = HELPERS / "search" / "ray_script.py"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed"
)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    settings = {"OMP_NUM_THREADS": "1", "RAY_AIR_NEW_OUTPUT": "0", "PYTHONWARNINGS": "ignore"}
    # not behind everything else that the machine does, as Ray has it otherwise
    settings["RAY_worker_niceness"] = "0"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return json.loads((folder / "seen.json").read_text())


def test_ray_best_run_equals_that_of_ray(seen):
    run_id, objective, values = seen["best"]
    assert dict(seen["trials"])[run_id] == objective == min(value for _, value in seen["trials"])
    assert set(values) == {"learning_rate", "seed"}


def test_ray_trainer_holds_the_best_model_and_its_arguments(seen):
    assert seen["held"] == seen["best"][1]
    assert seen["unchanged"]
    assert {f"run-{run_id}" for run_id, _ in seen["trials"]} == set(seen["folders"])


OPTIONS = [
    (
        {"direction": ["minimize", "maximize"]},
        "direction=.*Ray supports one objective. Pass one direction",
    ),
]


@pytest.mark.parametrize(("options", "match"), OPTIONS)
def test_ray_refuses_what_it_cannot_do(tmp_path, options, match):
    with pytest.raises(ValueError, match=match):
        searcher(tmp_path).hyperparameter_search(space, n_trials=1, backend="ray", **options)
