"""Parts of processes become whole files, and whole weights a part, in bounded memory."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from lightrainer.lightning_modules.checkpoints import load_torch, read_weights, save_weights
from lightrainer.lightning_modules.checkpoints.conversion import convert
from lightrainer.lightning_modules.checkpoints.sharded_files import (
    load_model_parts,
    save_model_parts,
    save_optimizer_parts,
)

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

WIDTH = 600  # states of a weight are larger than what stays in memory


def trained(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 2).bfloat16()
    )
    frozen = model[1].bias.requires_grad_(False)
    weights, others = (
        [one for one in model.parameters() if (one.ndim > 1) is wanted] for wanted in (True, False)
    )
    others = [one for one in others if one is not frozen]
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
def test_parts_become_whole_and_weights_a_part_again(parts, tmp_path, size):
    model, optimizer = trained()
    whole = convert(parts, tmp_path / "whole", max_shard_size=size)
    assert whole.name == "checkpoint-2"
    torch.testing.assert_close(read_weights(whole), dict(model.state_dict()), rtol=0, atol=0)
    files = [load_file(file) for file in sorted(whole.glob("*.safetensors"))]
    assert len(files) == (1 if size == "5GB" else 2)
    assert load_torch(whole / "scheduler.pt") == {"last_epoch": 2}
    assert not (whole / "optimizer_0").exists()
    # nothing is left of the scratch
    assert sorted(path.name for path in whole.parent.iterdir()) == ["checkpoint-2"]
    found = load_torch(whole / "optimizer.pt")
    torch.testing.assert_close(found, optimizer.state_dict(), rtol=0, atol=0)

    back, (other, fresh) = convert(whole, tmp_path / "back", parts=True), trained(seed=1)
    load_model_parts(other, back, all_ranks=False)
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert load_torch(back / "optimizer.pt")["param_groups"] == fresh.state_dict()["param_groups"]
    again = convert(back, tmp_path / "again", max_shard_size=size)
    assert len(list(again.glob("*.safetensors"))) == len(files)


def test_parts_conversion_of_a_model_without_states(tmp_path):
    model = nn.Linear(3, 2)
    model.again = model.weight  # tied
    save_weights(model, tmp_path / "whole")
    folder = convert(tmp_path / "whole", tmp_path / "parts", parts=True)
    assert {path.name for path in folder.iterdir()} == {"pytorch_model_fsdp_0", "_manifest.json"}
    weights = read_weights(folder)
    assert weights.keys() == {"weight", "again", "bias"}
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert convert(folder, tmp_path / "again") == tmp_path / "again"


def test_parts_that_cannot_be_converted_leave_nothing(parts, tmp_path):
    with pytest.raises(ValueError, match=r"parts of the optimizer: convert it into a folder first"):
        convert(parts, tmp_path / "made.ckpt")
    assert not (tmp_path / "made.ckpt").exists()
    with pytest.raises(ValueError, match=r"parts=True needs whole weights"):
        convert(parts, tmp_path / "out", parts=True)
    (parts / "pytorch_model_fsdp_0" / "__0_0.distcp").unlink()
    with pytest.raises((ValueError, FileNotFoundError), match="pytorch_model_fsdp_0"):
        convert(parts, tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*checkpoint-2*")] == ["checkpoint-2"]


MEASURED = """
import resource, sys
from lightrainer.lightning_modules.checkpoints import conversion
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, (whole, parts, again) = peak(), sys.argv[1:]
conversion.convert(whole, parts, parts=True)
conversion.convert(parts, again, max_shard_size="10MB")
print(peak() - before)
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="peak memory is measured in another unit elsewhere"
)
def test_memory_is_that_of_a_file_of_weights(tmp_path):
    layers = {f"{number}": torch.full((2**20, 2), float(number)) for number in range(20)}  # 160 MB
    folders = [tmp_path / name for name in ("whole", "parts", "again")]
    save_weights(nn.Module(), folders[0], state_dict=layers)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *folders], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 80  # MB
    found = read_weights(folders[-1])
    assert all(torch.equal(found[name], value) for name, value in layers.items())
