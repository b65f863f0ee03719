"""A model with two adapters in two processes, under DDP, FSDP and DeepSpeed: stopped, and gone
on with.
"""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers import HELPERS
from helpers.processes.starting import finished_ranks

pytest.importorskip("peft")

SCRIPT = HELPERS / "ddp" / "adapter_script.py"
STRATEGIES = ["ddp", "fsdp1", "fsdp1_hybrid", "fsdp2", "fsdp2_grad", "fsdp2_parts"]
BESIDE = Path(sys.prefix) / "deepspeed"
DEEPSPEED = ["deepspeed2", "deepspeed3"] if BESIDE.is_dir() else []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Each launch trains under several, one after the other."""
    folder = tmp_path_factory.mktemp("adapters")
    finished_ranks(
        SCRIPT,
        str(folder),
        *STRATEGIES,
        log=folder / "log.txt",
        seconds=240,
        library="transformers",
    )
    if DEEPSPEED:
        options = {
            "log": folder / "deepspeed.txt",
            "seconds": 240,
            "library": "transformers and deepspeed",
        }
        finished_ranks(SCRIPT, str(folder), *DEEPSPEED, **options, BESIDE=str(BESIDE))
    return folder


@pytest.mark.parametrize("strategy", [*STRATEGIES, *DEEPSPEED])
def test_adapters_resumption_is_exact(folder, strategy):
    """From a model whose adapters were others; which is active, and what is trained, is as before.

    Adapters begin differently in each process, and end as under DDP: what is sharded has no
    replicas to drift apart.
    """
    for rank in (0, 1):
        straight = json.loads((folder / f"{strategy}-rank{rank}.json").read_text())
        resumed = straight.pop("resumed")
        assert resumed == straight
        assert straight["losses"] == pytest.approx(
            json.loads((folder / "ddp-rank0.json").read_text())["losses"]
        )
        assert straight["active"] == ["default"]
        assert len(straight["trained"]) == 5
    for place in ("", "ref"):
        left, right = (
            load_file(folder / "shared" / where / "saved" / place / "adapter_model.safetensors")
            for where in (strategy, f"{strategy}/cut")
        )
        assert len(left) == 5
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)
        replicated = load_file(
            folder / "shared" / "ddp" / "saved" / place / "adapter_model.safetensors"
        )
        torch.testing.assert_close(left, replicated)
