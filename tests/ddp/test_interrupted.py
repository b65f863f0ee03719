"""One of two processes runs out of memory, or is asked to end: both do the same then, and nothing is lost."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).with_name("interrupted_script.py")
SECONDS = 120  # a run takes about ten


def launch(scenario, folder):
    """Start two processes; returns the exit code and what they said."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=localhost:0", str(SCRIPT), scenario, str(folder)]
    log = folder / f"{scenario}.log"
    with log.open("w") as stream:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=subprocess.STDOUT)
        try:
            code = process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            for member in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
            pytest.fail(f"{scenario}: two ranks were not done after {SECONDS} s\n{log.read_text()[-4000:]}")
    return code, log.read_text()


def seen(scenario, folder):
    return [json.loads((folder / f"{scenario}-rank{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    code, said = launch("memory", folder)
    assert code == 0, said[-5000:]
    assert said.count("Training starts again") == 2  # once for each training, by the first process
    return seen("memory", folder)


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_both_start_again_when_one_runs_out_of_memory(memory, place):
    """In its third step; the end is that of a training with the smaller batch, gradients averaged by DDP itself."""
    for rank in memory:
        found, given = rank[place], rank["given"]
        assert found["batch"] == given["batch"] == 2
        assert found["weights"] == given["weights"]
        assert found["history"] == given["history"]
        assert found["passes"] == given["passes"] + 3


def test_a_training_with_the_large_batch_ends_elsewhere(memory):
    """Negative control."""
    assert memory[0]["large"]["weights"] != memory[0]["given"]["weights"]


def test_both_stop_when_one_is_asked_to_and_go_on_to_the_same_bits(tmp_path):
    """Rank 1 gets the signal in step 4; both hear of it at the end of step 5, and exit with 143."""
    code, said = launch("stopped", tmp_path)
    assert code != 0
    # The first one to be gone lets torchrun end the other, which may have been on its way out still.
    codes = re.findall(r"exitcode  : (-?\d+)", said)
    assert "143" in codes
    assert set(codes) <= {"143", str(-signal.SIGTERM)}
    assert not list(tmp_path.glob("stopped-rank*.json"))
    assert [path.name for path in (tmp_path / "jit").iterdir()] == ["checkpoint-5"]
    code, said = launch("resumed", tmp_path)
    assert code == 0, said[-5000:]
    for rank in seen("resumed", tmp_path):
        assert rank["resumed"]["passes"] == rank["whole"]["passes"] - 5
        assert rank["resumed"]["weights"] == rank["whole"]["weights"]
        assert rank["resumed"]["history"] == rank["whole"]["history"]
