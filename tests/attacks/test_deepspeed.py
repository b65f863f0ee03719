"""DeepSpeed unpickles its states in full: they are looked through before, and fit before a step is
made with them.

What was written in stage 2 and is read in stage 3 DeepSpeed does not read itself.
"""

import json
import sys
from pathlib import Path

import pytest

from helpers import HELPERS
from helpers.processes.starting import finished_ranks

SCRIPT = HELPERS / "checkpoints" / "deepspeed_attack_script.py"
BESIDE = Path(sys.prefix) / "deepspeed"
"""Where the Makefile installs it: transformers and accelerate would import it in every process
that has it.
"""
SAID = {
    "model_states": "states.pt refers to posix.mkdir, which could run any code",
    "optimizer_states": "states.pt refers to posix.mkdir, which could run any code",
    "bare_pickle": "or not a torch file, and is not loaded",
    "elsewhere": "latest names '../other', which is not a folder with DeepSpeed's states",
    "small": "holds a tensor of shape (1,) and float32 as exp_avg of a parameter",
}


@pytest.mark.skipif(
    not BESIDE.is_dir(), reason="deepspeed is not installed separately; run `make test`"
)
def test_states_run_no_program_and_are_not_stepped_with_where_they_do_not_fit(tmp_path):
    options = {
        "log": tmp_path / "log.txt",
        "seconds": 300,
        "processes": 0,
        "library": "lightrainer and deepspeed",
    }
    finished_ranks(SCRIPT, str(tmp_path), **options, DS_ACCELERATOR="cpu")
    results = json.loads((tmp_path / "found.json").read_text())
    assert {attack.partition(" ")[0] for attack in results} == SAID.keys()
    for attack, result in results.items():
        assert SAID[attack.partition(" ")[0]] in result["message"], attack
        assert not result["ran"], attack
