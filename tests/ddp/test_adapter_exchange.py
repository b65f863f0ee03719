"""Checkpoints of a model with an adapter, sharded in two processes, go from one library to the other and back."""

import json
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from starting import finished_ranks

pytest.importorskip("peft")

SCRIPT = Path(__file__).with_name("adapter_exchange_script.py")
BESIDE = Path(sys.prefix) / "deepspeed"
STRATEGIES = ["fsdp2", *(["deepspeed2", "deepspeed3"] if BESIDE.is_dir() else [])]
LIBRARIES = ("transformers", "lightrainer")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Both libraries train without a break, then each resumes the other's checkpoints."""
    pytest.importorskip("accelerate")
    folder = tmp_path_factory.mktemp("exchange")
    more = {"BESIDE": str(BESIDE)} if BESIDE.is_dir() else {}
    common = {"log": folder / "log.txt", "seconds": 300, **more}
    resumed = [f"{strategy}:transformers" for strategy in STRATEGIES]
    back = [f"{strategy}:lightrainer" for strategy in STRATEGIES]
    for name, runs in (("transformers", STRATEGIES), ("lightrainer", [*STRATEGIES, *resumed]), ("transformers", back)):
        finished_ranks(SCRIPT, name, str(folder), *runs, library=f"{name} and deepspeed" if more else name, **common)
    return folder


def losses(folder, library, run):
    return json.loads((folder / library / run / "losses.json").read_text())


def weights(folder, library, run):
    return load_file(folder / library / run / "saved" / "adapter_model.safetensors")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("first", "second"), [LIBRARIES, LIBRARIES[::-1]])
def test_a_resumed_training_ends_as_one_without_a_break(folder, strategy, first, second):
    """From the other library's checkpoint of the third of six steps, in a model whose adapter began differently."""
    run = f"{strategy}:{first}"
    straight = losses(folder, first, strategy)
    assert losses(folder, second, run) == pytest.approx(straight, rel=1e-5)
    assert losses(folder, second, strategy) == pytest.approx(straight, rel=1e-5)
    expected, found = weights(folder, first, strategy), weights(folder, second, run)
    assert found.keys() == expected.keys()
    assert all(found[name].allclose(expected[name], atol=1e-5) for name in expected)
