"""Models that `from_pretrained(distributed_config=...)` of the newest transformers has spread over processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from lightrainer import Trainer, TrainingArguments

SCRIPT = Path(__file__).with_name("spread_script.py")
NEWEST = Path(sys.prefix) / "newest"
CASES = {"fsdp": "llama", "fsdp_lora": "lora", "tp": "llama", "ep": "moe", "hsdp": "llama", "fsdp_tp": "llama"}
CASES |= {"ep_tp": "moe"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases, in two and in four processes, beside the same trainings in one."""
    if not NEWEST.is_dir():
        pytest.skip("`make` lays the newest transformers aside")
    folder = tmp_path_factory.mktemp("spread")
    settings = {**os.environ, "PYTHONPATH": str(NEWEST), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), str(folder)]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-6000:]
    return folder


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(next(iter(folder.glob("*model.safetensors"))))


@pytest.mark.parametrize("case", CASES)
def test_they_train_as_in_one_process_and_are_saved_whole(folder: Path, case: str) -> None:
    """With accumulation, and clipping over weights that are spread in different ways."""
    told, expected = (json.loads((folder / one / "told.json").read_text()) for one in (case, f"single-{CASES[case]}"))
    assert len(set(expected["losses"])) == 4
    assert min(expected["norms"]) > 0.1, "all are clipped"
    for name in ("losses", "norms"):
        assert told[name] == pytest.approx(expected[name], rel=1e-5)
    model, single = (weights_of(folder / one) for one in (case, f"single-{CASES[case]}"))
    assert model.keys() == single.keys()
    assert max(float((model[name] - single[name]).abs().max()) for name in single) < 1e-5  # moved by 2e-2


@pytest.mark.parametrize("case", CASES)
def test_they_go_on_bit_for_bit(folder: Path, case: str) -> None:
    whole, resumed = (weights_of(folder / one) for one in (case, f"{case}-resumed"))
    assert all(bool((whole[name] == resumed[name]).all()) for name in whole)
    told, again = ((folder / one / "told.json").read_text() for one in (case, f"{case}-resumed"))
    assert again == told


def spread(**sizes: int) -> nn.Module:
    """Say what a spread model says of itself."""
    model = nn.Linear(2, 2)
    every = {"dp_replicate_size": 1, "fsdp_size": 1, "tp_size": 1, "pp_size": 1, **sizes}
    vars(model)["config"] = SimpleNamespace(distributed_config=SimpleNamespace(**every))
    vars(model)["is_distributed_loading_by_transformers"] = True
    return model


def split_by_5_3() -> nn.Module:
    model = nn.Linear(2, 2)
    vars(model)["_tp_size"] = 2
    return model


MODELS = [
    (spread(pp_size=2), {}, NotImplementedError, r"DistributedConfig\(pp_size=2\)"),
    (spread(fsdp_size=2), {"parallelism_config": {"tp_size": 2}}, ValueError, "parallelism_config spreads"),
    (split_by_5_3(), {}, ValueError, "into plain tensors.*tp_size"),
]


@pytest.mark.parametrize(("model", "given", "error", "said"), MODELS)
def test_what_cannot_be_trained_is_refused(model, given, error, said, tmp_path) -> None:
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **given)
    with pytest.raises(error, match=said):
        Trainer(model, args)
