"""States of several processes become those of none; real ones are in tests/deepspeed_runs."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from helpers.checkpoints.zero_files import BUFFER, FROZEN, SHAPES, number, of_process, written
from lightrainer.lightning_modules.distributed import deepspeed_states
from lightrainer.lightning_modules.distributed.zero_files import saved_states
from lightrainer.lightning_modules.distributed.zero_partition import ZeroPartition
from lightrainer.lightning_modules.distributed.zero_states import SavedScaler, ZeroStates


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
@pytest.mark.parametrize(("stage", "gap"), [(1, 0), (2, 3), (3, 0)])
def test_parameters_and_states_are_put_together(tmp_path, stage, gap, processes):
    states = ZeroStates(written(tmp_path, stage, processes, gap))
    for place, group in enumerate(SHAPES):
        for name, shape in group.items():
            assert torch.equal(states.weights[name], number(name, "fp32"))
            assert states.entries(name) == {"exp_avg", "exp_avg_sq"}
            for entry in states.entries(name):
                assert torch.equal(states.read(name, entry).view(shape), number(name, entry))
            assert states.scalars(name) == {"step": torch.tensor(7.0)}
            assert states.param_group_of(name) == place
    assert states.read("layer.weight", "exp_avg", 5, 6).tolist() == list(range(1105, 1111))
    assert states.counters == {"global_steps": 7, "skipped_steps": 1}
    assert [group["lr"] for group in states.param_groups] == [0.1, 0.2]


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_states_count_untrained_and_tied_weights(tmp_path, stage):
    weights = ZeroStates(written(tmp_path, stage, 3)).weights
    assert list(weights) == [
        "embedding",
        "frozen",
        "layer.weight",
        "layer.bias",
        "norm",
        "head",
        "counts",
    ]
    assert torch.equal(weights["frozen"], FROZEN)
    assert torch.equal(weights["counts"], BUFFER)
    assert torch.equal(weights["head"], weights["embedding"])
    assert "other" not in weights


def lack(pattern: str):
    return lambda states: next(states.glob(pattern)).unlink()


def cut(states: Path):
    path = next(states.glob("*1_mp_rank_00_optim*"))
    os.truncate(path, path.stat().st_size // 2)


def change(pattern: str, **changes):
    def made(states: Path):
        path = next(states.glob(pattern))
        content = torch.load(path, weights_only=True)
        inner = content["optimizer_state_dict"] if "optim" in pattern else content
        inner.update(changes)
        torch.save(content, path)

    return made


DAMAGED = {
    "lacks a process": (2, lack("*1_mp_rank_00_optim*"), "lacks the optim_states of process 1"),
    "lacks the last": (2, lack("*2_mp_rank_00_optim*"), "has the states of 2 of 3 processes"),
    "lacks a model": (3, lack("*1_mp_rank_00_model*"), "lacks the model_states of process 1"),
    "cut": (2, cut, "damaged"),
    "other groups": (2, change("*1_mp*optim*", group_paddings=[0]), "cannot be read|is damaged"),
    "few elements": (
        2,
        change("*0_mp*optim*", group_paddings=[-9, 0]),
        "cannot be read: it holds",
    ),
    "longer parts": (
        3,
        change("*0_mp*optim*", fp32_flat_groups=[torch.ones(99)] * 2),
        "cannot be read: it holds",
    ),
    "short parts": (
        3,
        change("*1_mp*optim*", fp32_flat_groups=[torch.ones(1)] * 2),
        "cannot be read: it holds",
    ),
    "no tensors": (
        2,
        change("*0_mp*optim*", single_partition_of_fp32_groups=[1, 2]),
        "not written by DeepSpeed",
    ),
    "no shapes": (2, change("mp*model*", param_shapes=None), "not written by DeepSpeed"),
    "larger shapes": (
        2,
        change("mp*model*", param_shapes=[{"a": (99,)}, {"b": (2,)}]),
        "does not have its part of a",
    ),
    "negative": (2, change("mp*model*", param_shapes=[{"a": (-4,)}, {"b": (2,)}]), "damaged"),
    "few frozen": (
        3,
        change("*1_mp*model*", frozen_param_fragments={"frozen": torch.ones(1)}),
        "elements of frozen",
    ),
    "nvme": (
        3,
        lambda states: (states / "offloaded_tensors").mkdir(),
        "has states offloaded to NVMe",
    ),
    "elastic": (2, change("*0_mp*optim*", base_optimizer_state=[]), "elastic_checkpoint"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_zero_states_report_missing_and_damaged_parts(tmp_path, case):
    stage, damage, message = DAMAGED[case]
    damage(written(tmp_path, stage, 3) / "global_step7")
    with pytest.raises(ValueError, match=message):
        ZeroStates(tmp_path)


@pytest.mark.parametrize("stage", [2, 3])
def test_states_of_one_process_alone_cannot_be_put_together(tmp_path, stage):
    for place, state in enumerate(
        [{"absmax": torch.ones(3)}, {"exp_avg": torch.ones(16, dtype=torch.uint8)}]
    ):
        with pytest.raises(ValueError, match=r"cannot be resharded|has \["):
            ZeroStates(written(tmp_path / str(place), stage, 2, **state))


@pytest.mark.parametrize("stage", [2, 3])
def test_processes_have_made_the_same_steps(tmp_path, stage):
    with pytest.raises(ValueError, match="do not match those of process 0"):
        ZeroStates(written(tmp_path, stage, 2, step=torch.tensor(8.0)))


def test_folder_without_states_of_zero_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no states of DeepSpeed's ZeRO"):
        ZeroStates(tmp_path)
    assert saved_states(tmp_path) is None


class Runs:
    """Run a program when unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


@pytest.mark.parametrize("pattern", ["*1_mp*optim*", "*mp*model*"])
def test_zero_states_run_no_program(tmp_path, pattern):
    path = next((written(tmp_path, 2, 2) / "global_step7").glob(pattern))
    torch.save({**torch.load(path, weights_only=True), "more": Runs(tmp_path / "ran")}, path)
    with pytest.raises(ValueError, match="could run any code, and is not loaded"):
        ZeroStates(tmp_path)
    assert not (tmp_path / "ran").exists()
    torch.load(path, weights_only=False)  # negative control
    assert (tmp_path / "ran").exists()


class DynamicLossScaler:
    """As DeepSpeed's."""

    def __init__(self, **attributes) -> None:
        vars(self).update(
            cur_scale=4.0, cur_iter=0, dynamic=True, last_overflow_iter=-1, **attributes
        )


def test_zero_states_keep_the_class_of_the_loss_scale():
    """DeepSpeed has no fp16 on the CPU."""
    saved = {
        "cur_scale": 8.0,
        "cur_iter": 7,
        "last_overflow_iter": 3,
        "loss_scale": "?",
        "foreign": 1,
    }
    loss_scaler = DynamicLossScaler(loss_scale=None)
    restore = deepspeed_states._restore_scaler
    restore(loss_scaler, SimpleNamespace(scaler=SavedScaler("DynamicLossScaler", saved)))
    unchanged = {"dynamic": True, "loss_scale": None}
    assert vars(loss_scaler) == {
        **unchanged,
        "cur_scale": 8.0,
        "cur_iter": 7,
        "last_overflow_iter": 3,
    }
    for other in (SavedScaler("LossScaler", saved), None):
        fresh = DynamicLossScaler()
        restore(fresh, SimpleNamespace(scaler=other))
        assert vars(fresh) == vars(DynamicLossScaler())


def test_shapes_and_parts_have_to_belong_together():
    with pytest.raises(ValueError, match="2 flat tensors, 2 states, 1 descriptions"):
        ZeroPartition(of_process(2, 2, 0, 0), SHAPES[:1], rank=0, ranks=2)
