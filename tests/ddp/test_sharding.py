"""One model under every strategy that shards it, in two processes: the numbers of one process, and whole files."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).with_name("shard_script.py")
SECONDS = 240
EXACT = ["fsdp1", "fsdp1_hybrid", "fsdp2", "fsdp2_grad", "groups"]
HALF = ["fsdp1_bf16", "fsdp2_bf16"]
NUMBERS = ("losses", "norms", "eval_losses", "last_eval_loss")
PARAMETERS = 264  # two blocks of 8 * 8 + 8 + 16, and tied embeddings of 11 * 8


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], dict[str, Any]]:
    """`results(strategy, rank)`: one launch trains under all of them, one after the other."""
    folder = tmp_path_factory.mktemp("sharded")
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d"]
    torchrun += ["--rdzv-endpoint=localhost:0"]
    run(folder, [str(SCRIPT), str(folder), "single"])
    run(folder, [*torchrun, str(SCRIPT), str(folder), "ddp", *EXACT, *HALF])
    read = lambda strategy, rank=0: json.loads((folder / f"{strategy}-rank{rank}.json").read_text())  # noqa: E731
    read.folder = folder
    return read


def run(folder: Path, command: list[str]) -> None:
    log = folder / "log.txt"
    with log.open("w") as stream:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen([sys.executable, *command], env=environment, stdout=stream, stderr=stream)
        try:
            process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            for child in (*psutil.Process(process.pid).children(recursive=True), process):
                child.kill()
            pytest.fail(f"not done after {SECONDS} s\n{log.read_text()[-6000:]}")
    assert process.returncode == 0, log.read_text()[-8000:]


def close(expected: dict[str, Any], actual: dict[str, Any], tolerance: float) -> None:
    for name in NUMBERS:
        assert actual[name] == pytest.approx(expected[name], rel=tolerance), name


@pytest.mark.parametrize("strategy", ["ddp", *EXACT])
def test_the_numbers_are_those_of_one_process(results, strategy):
    """With accumulation, clipping, weight decay and tied weights: losses, norms and evaluations to 1e-5."""
    for rank in (0, 1):
        close(results("single"), results(strategy, rank), 1e-5)
    losses = results(strategy)["losses"]
    assert len(losses) == 6
    assert len(set(losses)) == 6


@pytest.mark.parametrize("strategy", HALF)
def test_half_precision_is_near_but_not_the_same(results, strategy):
    close(results("single"), results(strategy), 2e-2)
    assert results(strategy)["losses"] != pytest.approx(results("single")["losses"], rel=1e-5)


@pytest.mark.parametrize("strategy", [*EXACT, *HALF])
def test_each_process_has_a_part_of_the_parameters(results, strategy):
    """Negative control: under DDP each has all."""
    sizes = [results(strategy, rank)["local_numel"] for rank in (0, 1)]
    assert all(size < 0.6 * PARAMETERS for size in sizes)
    assert sum(sizes) >= PARAMETERS
    assert results("ddp")["local_numel"] == PARAMETERS


@pytest.mark.parametrize("strategy", EXACT)
def test_every_sample_is_predicted_once_and_in_order(results, strategy):
    for rank in (0, 1):
        assert results(strategy, rank)["predicted"] == list(range(12))


@pytest.mark.parametrize("strategy", [*EXACT, *HALF])
def test_saved_models_are_whole(results, strategy):
    """The same names, shapes and values as those of one process; tied weights once."""
    expected = load_file(results.folder / "single" / "saved" / "model.safetensors")
    found = load_file(results.folder / strategy / "saved" / "model.safetensors")
    assert {name: tensor.shape for name, tensor in found.items()} == {n: t.shape for n, t in expected.items()}
    for name, tensor in expected.items():
        near = 2e-2 if strategy in HALF else 2e-5
        torch.testing.assert_close(found[name], tensor, rtol=near, atol=near)
    assert results(strategy)["saved"] == results("single")["saved"]
    assert results(strategy, 1)["saved"] is None


@pytest.mark.parametrize("strategy", EXACT)
def test_checkpoints_have_the_form_of_one_process(results, strategy):
    """Whole tensors by the same numbers, so that a training can go on with any number of processes."""
    name = "checkpoint-6/optimizer.pt"
    expected = torch.load(results.folder / "single" / name, weights_only=True)
    found = torch.load(results.folder / strategy / name, weights_only=True)
    assert found["state"].keys() == expected["state"].keys()
    assert [group["params"] for group in found["param_groups"]] == [g["params"] for g in expected["param_groups"]]
    for index, values in expected["state"].items():
        assert float(found["state"][index]["step"]) == float(values["step"]) == 6
        for key in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(found["state"][index][key], values[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2"])
def test_a_stopped_training_goes_on_as_if_never_stopped(results, strategy):
    """From the middle of a pass, in a model with other first weights; the best model is loaded at the end."""
    straight, resumed = results(strategy), results(strategy)["resumed"]
    for name in NUMBERS:
        assert resumed[name] == straight[name]
    assert resumed["best"] == straight["best"] == 6
    weights = [results.folder / where / "saved" / "model.safetensors" for where in (strategy, f"{strategy}-cut")]
    left, right = (load_file(path) for path in weights)
    assert all(torch.equal(left[name], right[name]) for name in left)
