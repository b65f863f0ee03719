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
STRATEGIES = ["fsdp2", "fsdp2_parts", *(["deepspeed2", "deepspeed3"] if BESIDE.is_dir() else [])]
LIBRARIES = ("transformers", "lightrainer")
EXCHANGED = [(strategy, *order) for strategy in STRATEGIES for order in (LIBRARIES, LIBRARIES[::-1])]
EXCHANGED.remove(("fsdp2", "lightrainer", "transformers"))  # accelerate goes on under FSDP with its own kind of file
EXCHANGED.append(("ddp:fsdp2", "lightrainer", "transformers"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Both libraries train without a break, then each resumes the other's checkpoints."""
    pytest.importorskip("accelerate")
    folder = tmp_path_factory.mktemp("exchange")
    more = {"BESIDE": str(BESIDE)} if BESIDE.is_dir() else {}
    common = {"log": folder / "log.txt", "seconds": 300, **more}
    runs = {
        name: [run_of(strategy, first) for strategy, first, then in EXCHANGED if then == name] for name in LIBRARIES
    }
    ours = [*STRATEGIES, *runs["lightrainer"]]
    for name, asked in (("transformers", STRATEGIES), ("lightrainer", ours), ("transformers", runs["transformers"])):
        finished_ranks(SCRIPT, name, str(folder), *asked, library=f"{name} and deepspeed" if more else name, **common)
    return folder


def run_of(strategy, first):
    """Its name: a strategy, the library whose checkpoint it starts from, and the strategy of that, if it is another."""
    second, _, before = strategy.partition(":")
    return ":".join(filter(None, (second, first, before)))


def losses(folder, library, run):
    return json.loads((folder / library / run / "losses.json").read_text())


def weights(folder, library, run):
    return load_file(folder / library / run / "saved" / "adapter_model.safetensors")


@pytest.mark.parametrize(("strategy", "first", "second"), EXCHANGED)
def test_a_resumed_training_ends_as_one_without_a_break(folder, strategy, first, second):
    """From the other library's checkpoint of the third of six steps, in a model whose adapter began differently.

    The last losses are those of weights that the optimizer's state has moved.
    """
    run, before = run_of(strategy, first), strategy.rpartition(":")[2]
    straight = losses(folder, first, before)
    assert losses(folder, second, run) == pytest.approx(straight, rel=1e-5)
    assert losses(folder, second, before) == pytest.approx(straight, rel=1e-5)
    if before.endswith("parts"):  # the reference writes no weights but parts
        return
    expected, found = weights(folder, first, before), weights(folder, second, run)
    assert found.keys() == expected.keys()
    assert all(found[name].allclose(expected[name], atol=1e-5) for name in expected)
