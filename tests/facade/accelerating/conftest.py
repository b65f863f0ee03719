"""One run of two processes for all tests of this folder."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
SECONDS = 180  # it takes fifteen; two processes that wait for each other for ever end here


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory):
    """What the two processes of `accelerator_ranks_script.py` wrote, and where."""
    pytest.importorskip("accelerate")
    folder = tmp_path_factory.mktemp("accelerator")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=localhost:0", str(HERE / "accelerator_ranks_script.py"), str(folder)]
    log = folder / "log"
    with log.open("w") as stream:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=environment)
        try:
            process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            end(process.pid)
            pytest.fail(f"two processes were not done after {SECONDS} s\n{log.read_text()[-6000:]}")
    assert process.returncode == 0, log.read_text()[-6000:]
    return folder, [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def end(pid):
    """Kill a process and all that it started: the ranks are in sessions of their own."""
    for member in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
