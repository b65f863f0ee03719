"""Parts of processes become whole files, one of them in memory at a time."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from lightrainer.lightning_modules.checkpoints import (
    conversion,
    load_torch,
    problems,
    read_weights,
)
from lightrainer.lightning_modules.checkpoints.conversion import convert
from lightrainer.lightning_modules.checkpoints.sharded_files import (
    save_model_parts,
    save_optimizer_parts,
)

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

WIDTH = 600  # more than a megabyte of weights


def trained(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 2).bfloat16()
    )
    frozen = model[1].bias.requires_grad_(False)
    weights, others = (
        [parameter for parameter in model.parameters() if (parameter.ndim > 1) is is_matrix]
        for is_matrix in (True, False)
    )
    others = [parameter for parameter in others if parameter is not frozen]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    for _ in range(2):
        model[2](model[:2](torch.randn(4, WIDTH)).bfloat16()).sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.fixture
def parts(tmp_path):
    folder, (model, optimizer) = tmp_path / "parts" / "checkpoint-2", trained()
    folder.mkdir(parents=True)
    save_model_parts(model, folder)
    save_optimizer_parts(model, optimizer, folder)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 2, "epoch": 1.0}))
    torch.save({"last_epoch": 2}, folder / "scheduler.pt")
    return folder


@pytest.mark.parametrize("size", ["5GB", "1MB"])
def test_parts_become_whole(parts, tmp_path, monkeypatch, size):
    monkeypatch.setattr(conversion, "_LARGEST_FILE", size)
    model, optimizer = trained()
    for name in ("additional_chat_templates/tool.jinja", "1_Pooling/config.json", "runs/events"):
        (parts / name).parent.mkdir()
        (parts / name).write_text("kept")
    whole = convert(parts, tmp_path / "whole")
    assert whole.name == "checkpoint-2"
    torch.testing.assert_close(read_weights(whole), dict(model.state_dict()), rtol=0, atol=0)
    files = [load_file(file) for file in sorted(whole.glob("*.safetensors"))]
    assert len(files) == (1 if size == "5GB" else 2)
    assert load_torch(whole / "scheduler.pt") == {"last_epoch": 2}
    folders = {path.name for path in whole.iterdir() if path.is_dir()}
    assert folders == {"additional_chat_templates", "1_Pooling"}
    assert (whole / "additional_chat_templates" / "tool.jinja").read_text() == "kept"
    assert problems(whole) == []
    assert sorted(path.name for path in whole.parent.iterdir()) == ["checkpoint-2"]
    actual = load_torch(whole / "optimizer.pt")
    torch.testing.assert_close(actual, optimizer.state_dict(), rtol=0, atol=0)


def test_parts_conversion_of_a_model_without_states(tmp_path):
    model = nn.Linear(3, 2)
    model.again = model.weight  # tied
    save_model_parts(model, tmp_path / "parts")
    folder = convert(tmp_path / "parts", tmp_path / "whole")
    assert folder == tmp_path / "whole"
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "_manifest.json"}
    weights = read_weights(folder)
    assert weights.keys() == {"weight", "again", "bias"}
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_parts_that_cannot_be_converted_leave_nothing(parts, tmp_path):
    with pytest.raises(ValueError, match=r"sharded optimizer: convert it to a folder first"):
        convert(parts, tmp_path / "made.ckpt")
    assert not (tmp_path / "made.ckpt").exists()
    (parts / "pytorch_model_fsdp_0" / "__0_0.distcp").unlink()
    with pytest.raises((ValueError, FileNotFoundError), match="pytorch_model_fsdp_0"):
        convert(parts, tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*checkpoint-2*")] == ["checkpoint-2"]


MEASURED = """
import resource, sys
from lightrainer.lightning_modules.checkpoints import conversion
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, (parts, whole) = peak(), sys.argv[1:]
conversion._LARGEST_FILE = "10MB"
conversion.convert(parts, whole)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory has another unit on other systems")
def test_memory_is_that_of_a_file_of_weights(tmp_path):
    model = nn.Module()  # 160 MB
    for number in range(20):
        model.register_buffer(f"layer_{number}", torch.full((2**20, 2), float(number)))
    folders = [tmp_path / "parts", tmp_path / "whole"]
    save_model_parts(model, folders[0])
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *folders], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 80  # MB
    weights = read_weights(folders[-1])
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
