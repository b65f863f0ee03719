"""Folders with states of DeepSpeed's processes become folders without, where there is no
DeepSpeed.
"""

import json
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest
import torch

from helpers.checkpoints.zero_files import BUFFER, FROZEN, SHAPES, number, written
from lightrainer.lightning_modules.checkpoints import load_torch, problems, read_weights
from lightrainer.lightning_modules.checkpoints.conversion import convert
from lightrainer.tools.convert import convert as command

STATE = {"global_step": 7, "epoch": 1.0}
SHARED = ("embedding", "layer.weight", "layer.bias", "norm")


def checkpoint(folder, stage, processes=3, **changes):
    written(folder, stage, processes, **changes)
    (folder / "trainer_state.json").write_text(json.dumps(STATE))
    return folder


@pytest.mark.parametrize("stage", [1, 3])
def test_zero_conversion_makes_a_plain_checkpoint(tmp_path, stage):
    source = checkpoint(tmp_path / "in", stage)
    torch.save({"last_epoch": 7}, source / "scheduler.pt")
    (source / "model-00001-of-00002.safetensors").write_text("weights in half precision")
    (source / "additional_chat_templates").mkdir()
    converted = convert(source, tmp_path / "out")
    names = {path.name for path in converted.iterdir()}
    assert converted == tmp_path / "out" / "checkpoint-7"
    assert names == {
        "model.safetensors",
        "optimizer.pt",
        "scheduler.pt",
        "trainer_state.json",
        "additional_chat_templates",
        "_manifest.json",
    }
    assert problems(converted) == []
    weights = read_weights(converted)
    assert all(torch.equal(weights[name], number(name, "fp32")) for name in SHARED)
    assert torch.equal(weights["frozen"], FROZEN.float())
    assert torch.equal(weights["counts"], BUFFER)
    assert weights["head"] is weights["embedding"]  # stored once
    assert find_spec("deepspeed") is None


@pytest.mark.parametrize("stage", [1, 3])
def test_zero_conversion_makes_whole_optimizer_states(tmp_path, stage):
    converted = convert(checkpoint(tmp_path / "in", stage), tmp_path / "out")
    parameters = [
        [torch.nn.Parameter(torch.zeros(shape)) for shape in group.values()] for group in SHAPES
    ]
    optimizer = torch.optim.AdamW([{"params": group} for group in parameters])
    optimizer.load_state_dict(load_torch(converted / "optimizer.pt"))
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    for name, parameter in zip(
        SHARED, (tensor for group in parameters for tensor in group), strict=True
    ):
        for entry in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(optimizer.state[parameter][entry], number(name, entry))
        assert optimizer.state[parameter]["step"] == 7


def test_zero_conversion_takes_the_schedule_from_the_states(tmp_path):
    """The reference leaves it there."""
    path = next((checkpoint(tmp_path / "in", 3) / "global_step7").glob("*pp_rank_0*model*"))
    torch.save({**torch.load(path, weights_only=True), "lr_scheduler": {"last_epoch": 7}}, path)
    assert load_torch(convert(tmp_path / "in", tmp_path / "out") / "scheduler.pt") == {
        "last_epoch": 7
    }


def test_zero_conversion_makes_a_whole_model(tmp_path):
    """The folder of `save_model`, which cannot be resumed from."""
    (written(tmp_path / "in", 3, 2) / "config.json").write_text("{}")
    assert convert(tmp_path / "in", tmp_path / "out") == tmp_path / "out"
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"model.safetensors", "config.json", "_manifest.json"}


@pytest.mark.parametrize(("steps", "tracker"), [(0, 0), (1, 0), (4, 3), (5, 0)])
def test_zero_conversion_keeps_the_loss_scale(tmp_path, monkeypatch, steps, tracker):
    """DeepSpeed grows it in a step after which `scale_window` ones were without overflow, torch
    in the last of them.
    """
    name = "deepspeed.runtime.fp16.loss_scaler"
    scaler = type(
        "DynamicLossScaler", (), {"__module__": name, "__qualname__": "DynamicLossScaler"}
    )
    for parent in ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.fp16", name):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    monkeypatch.setattr(sys.modules[name], "DynamicLossScaler", scaler, raising=False)
    loss_scaler = scaler()
    vars(loss_scaler).update(
        cur_scale=512, scale_factor=2.0, scale_window=4, last_overflow_iter=2, cur_iter=3 + steps
    )
    path = next((checkpoint(tmp_path / "in", 2, 1) / "global_step7").glob("*optim*"))
    content = torch.load(path, weights_only=True)
    content["optimizer_state_dict"]["loss_scaler"] = loss_scaler
    torch.save(content, path)
    scaled = torch.amp.GradScaler("cpu", growth_interval=9)
    scaled.load_state_dict(load_torch(convert(tmp_path / "in", tmp_path / "out") / "scaler.pt"))
    assert scaled.state_dict() == {
        **{"scale": 512.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 4},
        "_growth_tracker": tracker,
    }


def test_zero_states_that_cannot_be_converted_leave_nothing(tmp_path, capsys):
    source, out = checkpoint(tmp_path / "in", 2), tmp_path / "out"
    with pytest.raises(
        ValueError, match=r"target=.*again\.ckpt.: convert .* to a folder first, then that"
    ):
        convert(source, tmp_path / "again.ckpt")
    next((source / "global_step7").glob("*rank_1*optim*")).unlink()
    with pytest.raises(SystemExit) as ended:
        command([str(source), str(out)])
    assert ended.value.code == 2
    assert "lacks the optim_states of process 1" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_zero_conversion_overwrites_only_on_request(tmp_path):
    source = checkpoint(tmp_path / "in", 2)
    convert(source, tmp_path / "out")
    with pytest.raises(FileExistsError, match=r"exists; pass --force \(force=True\) to replace it"):
        convert(source, tmp_path / "out")
    assert command([str(source), str(tmp_path / "out"), "--force"]) == 0
    assert read_weights(tmp_path / "out" / "checkpoint-7")["norm"].dtype == torch.float32


def test_stage_0_is_refused(tmp_path):
    source = tmp_path / "in"
    (source / "global_step7").mkdir(parents=True)
    torch.save({}, source / "global_step7" / "mp_rank_00_model_states.pt")
    (source / "latest").write_text("global_step7")
    with pytest.raises(ValueError, match="Stage 0 saves full"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
