"""Models that `from_pretrained(distributed_config=...)` of the newest transformers has spread
over processes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from helpers import HELPERS
from lightrainer import Trainer, TrainingArguments

SCRIPT = HELPERS / "ddp" / "spread_script.py"
NEWEST = Path(sys.prefix) / "newest"
CASES = {
    "fsdp": "llama",
    "fsdp_lora": "lora",
    "tp": "llama",
    "ep": "moe",
    "hsdp": "llama",
    "fsdp_tp": "llama",
}
CASES |= {"ep_tp": "moe"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases, in two and in four processes, beside the same trainings in one."""
    if not NEWEST.is_dir():
        pytest.skip("the newest transformers is not installed separately; run `make`")
    folder = tmp_path_factory.mktemp("spread")
    settings = {**os.environ, "PYTHONPATH": str(NEWEST), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), str(folder)]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-6000:]
    return folder


def read(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    return json.loads((folder / "told.json").read_text()), load_file(
        next(iter(folder.glob("*model.safetensors")))
    )


@pytest.mark.parametrize("case", CASES)
def test_spread_models_train_as_in_one_process_and_are_saved_whole(folder: Path, case: str) -> None:
    """With accumulation, and clipping over weights that are spread in different ways; they
    resume bit for bit.
    """
    places = (case, f"single-{CASES[case]}", f"{case}-resumed")
    (results, model), (expected, single), (again, resumed) = (
        read(folder / place) for place in places
    )
    assert len(set(expected["losses"])) == 4
    assert min(expected["norms"]) > 0.1, "all are clipped"
    for name in ("losses", "norms"):
        assert results[name] == pytest.approx(expected[name], rel=1e-5)
    assert model.keys() == single.keys()
    # moved by 2e-2
    assert max(float((model[name] - single[name]).abs().max()) for name in single) < 1e-5
    assert again == results
    assert all(bool((model[name] == resumed[name]).all()) for name in model)


def test_model_split_into_plain_tensors_by_5_3_is_refused(tmp_path):
    model = torch.nn.Linear(2, 2)
    vars(model)["_tp_size"] = 2
    with pytest.raises(ValueError, match=r"into plain tensors.*tp_size"):
        Trainer(model, TrainingArguments(str(tmp_path), use_cpu=True, report_to="none"))
