"""One model under every strategy that shards it, in two processes: the numbers of one process,
and whole files.
"""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.fsdp import StateDictType

from helpers import HELPERS
from helpers.ddp import shard_script
from helpers.processes.beside_one_process import (
    NUMBERS,
    close,
    devices,
    goes_on,
    launched,
    same_model,
    same_optimizer,
)
from helpers.processes.starting import finished_ranks, forked_ranks
from lightrainer.lightning_modules.checkpoints import problems
from lightrainer.lightning_modules.checkpoints.manifest import files_below

SCRIPT = HELPERS / "ddp" / "shard_script.py"
PARTS = ["fsdp1_parts", "fsdp2_parts"]
EXACT = [
    "fsdp1",
    "fsdp1_hybrid",
    "fsdp1_other",
    "fsdp2",
    "fsdp2_grad",
    "fsdp2_hybrid",
    "groups",
    *PARTS,
]
HALF = ["fsdp1_bf16", "fsdp2_bf16"]
RULED = ["ddp_rules", "fsdp1_rules", "fsdp2_rules", "fsdp2_adafactor"]
MUON = ["ddp_muon", "fsdp2_muon"] if hasattr(torch.optim, "Muon") else []
PARAMETERS = 264  # two blocks of 8 * 8 + 8 + 16, and tied embeddings of 11 * 8


@pytest.fixture(scope="module", params=devices(2))
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, int], dict[str, Any]]:
    """See `launched`: one launch trains under all of them, one after the other."""
    groups = (2, ["ddp", *EXACT, *HALF, "fsdp1_fp16", "fsdp2_fp16", "fsdp1_flat", *RULED, *MUON])
    alone = ["single", "single_rules", "single_adafactor"]
    if MUON:
        alone.append("single_muon")
    return launched(SCRIPT, tmp_path_factory.mktemp("sharded"), request.param, alone, groups)


@pytest.mark.parametrize("strategy", ["ddp", *EXACT])
def test_fsdp_equals_one_process(results, strategy):
    """With accumulation, clipping, weight decay and tied weights: losses, norms and evaluations
    to 1e-5.
    """
    for rank in (0, 1):
        close(results("single", "single"), results(strategy, rank), 1e-5)
        assert results(strategy, rank)["predicted"] == list(range(12))
    assert len(set(results(strategy)["losses"])) == 6


@pytest.mark.parametrize("strategy", [*RULED, *MUON])
def test_rules_and_optimizers_of_whole_parameters_train_as_in_one_process(results, strategy):
    """Frozen parameters, decay by layer; Adafactor; Muon's iteration in bfloat16 rounds
    differently on parts.
    """
    alone = f"single_{strategy.rpartition('_')[2]}"
    close(results(alone, "single"), results(strategy), 2e-2 if strategy == "fsdp2_muon" else 1e-5)
    assert results(strategy)["losses"] == results(strategy, 1)["losses"]
    assert results(strategy)["losses"] != pytest.approx(
        results("single", "single")["losses"], rel=2e-2
    )


@pytest.mark.parametrize("strategy", HALF)
def test_half_precision_is_near_but_not_the_same(results, strategy):
    close(results("single", "single"), results(strategy), 2e-2)
    assert results(strategy)["losses"] != pytest.approx(
        results("single", "single")["losses"], rel=1e-5
    )


def test_float16_scales_its_losses_and_leaves_out_the_same_steps_everywhere(results):
    """Both versions skip the step whose gradients are infinite, in all processes, and then
    train.
    """
    expected = results("fsdp1_fp16")
    for strategy in ("fsdp1_fp16", "fsdp2_fp16"):
        for rank in (0, 1):
            close(expected, results(strategy, rank), 1e-3)
    assert expected["losses"][0] == pytest.approx(
        results("single", "single")["losses"][0], rel=1e-2
    )
    finite = [norm for norm in expected["norms"] if norm < float("inf")]
    assert 3 <= len(finite) < 6
    assert all(norm < 20 for norm in finite)


@pytest.mark.parametrize("strategy", [*EXACT, *HALF])
def test_fsdp_process_has_a_part_of_the_parameters(results, strategy):
    """Negative control: under DDP each has all."""
    sizes = [results(strategy, rank)["local_numel"] for rank in (0, 1)]
    assert all(size < 0.6 * PARAMETERS for size in sizes)
    assert sum(sizes) >= PARAMETERS
    assert results("ddp")["local_numel"] == PARAMETERS


@pytest.mark.parametrize("strategy", [*EXACT, *HALF])
def test_saved_models_are_whole(results, strategy):
    """The same names, shapes and values as those of one process; tied weights once."""
    whole, sharded = (
        results.folder / place / "saved" for place in ("single/single", f"shared/{strategy}")
    )
    same_model(whole, sharded, 2e-2 if strategy in HALF else 2e-5)
    assert results(strategy)["saved"] == results("single", "single")["saved"]
    assert results(strategy, 1)["saved"] is None


@pytest.mark.parametrize("strategy", [name for name in EXACT if name not in PARTS])
def test_checkpoints_have_the_form_of_one_process(results, strategy):
    """Whole tensors under the same numbers, so that a training can resume with any number of
    processes.
    """
    name = "checkpoint-6/optimizer.pt"
    same_optimizer(
        results.folder / "single" / "single" / name, results.folder / "shared" / strategy / name
    )


@pytest.mark.parametrize("strategy", PARTS)
def test_parts_are_written_by_all_processes_and_read_by_one(results, strategy, tmp_path, caplog):
    """A training in one process resumes from the parts of two."""
    before = results.folder / "shared" / strategy / "checkpoint-4"
    assert not (before / "model.safetensors").exists()
    assert not (before / "optimizer.pt").exists()
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        assert sorted(path.name for path in (before / name).iterdir()) == [
            ".metadata",
            "__0_0.distcp",
            "__1_0.distcp",
        ]
    shutil.copytree(before, tmp_path / "out" / "checkpoint-4")
    trainer = shard_script.trainer_of(tmp_path / "out", "single", seed=99)
    trainer.train(resume_from_checkpoint=True)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses == pytest.approx(results("single", "single")["losses"], rel=1e-5)


@pytest.mark.parametrize(
    "strategy", ["fsdp1", "fsdp2", "fsdp1_flat", *PARTS, "fsdp2_rules", *MUON[1:]]
)
def test_fsdp_resumption_is_exact(results, strategy):
    """From the middle of a pass, in a model with other first weights; the best model is loaded
    at the end.
    """
    goes_on(results(strategy), (*NUMBERS, "best"))
    assert results(strategy)["best"] == 6
    folder = results.folder / "shared" / strategy
    left, right = (
        load_file(path / "saved" / "model.safetensors") for path in (folder, folder / "cut")
    )
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2", "fsdp2_parts"])
def test_fsdp_plugin_accepts_whole_weights_for_the_last_save(tmp_path, strategy):
    """By name or as torch's member; parts only where checkpoints are in parts."""
    plugin = shard_script.trainer_of(tmp_path, strategy).accelerator.state.fsdp_plugin
    plugin.set_state_dict_type("FULL_STATE_DICT")
    plugin.set_state_dict_type(StateDictType.FULL_STATE_DICT)
    assert plugin.fsdp_version == (1 if strategy == "fsdp1" else 2)
    if strategy == "fsdp2_parts":
        plugin.set_state_dict_type("SHARDED_STATE_DICT")
        assert plugin.state_dict_type == "SHARDED_STATE_DICT"
    else:
        with pytest.raises(NotImplementedError, match=r"SHARDED_STATE_DICT.*fsdp_config"):
            plugin.set_state_dict_type("SHARDED_STATE_DICT")


def test_fsdp_plugin_shards_no_second_model(tmp_path):
    plugin = shard_script.trainer_of(tmp_path, "fsdp2").accelerator.state.fsdp_plugin
    with pytest.raises(NotImplementedError, match=r"set_auto_wrap_policy.*second model"):
        plugin.set_auto_wrap_policy(torch.nn.Linear(1, 1))
    with pytest.raises(NotImplementedError, match=r"auto_wrap_policy.*fsdp_config"):
        plugin.auto_wrap_policy = None


def test_fsdp_parts_of_a_layer_with_fewer_rows_than_processes_resume(tmp_path):
    script = HELPERS / "ddp" / "narrow_head_script.py"
    finished_ranks(script, str(tmp_path), log=tmp_path / "log.txt", seconds=240)


WRITTEN = ["later:fsdp1_parts", "now:fsdp1_parts", "later:fsdp2", "now:fsdp2", "now:fsdp2_parts"]
WRITTEN += [f"{kind}:fsdp2_parts" for kind in ("later", "alive", "full", "refused")]
WRITTEN += [
    f"{kind}:{strategy}" for kind in ("whole", "incomplete") for strategy in ("fsdp1", "fsdp2")
]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """`written(strategy, kind, rank)`: see `shard_script.written`; and its `folder`."""
    folder = tmp_path_factory.mktemp("written")
    finished_ranks(SCRIPT, str(folder), *WRITTEN, log=folder / "log.txt", seconds=240)

    def get(strategy: str, kind: str, rank: int = 0) -> dict[str, Any]:
        return json.loads((folder / f"{kind}:{strategy}-rank{rank}.json").read_text())

    get.folder = folder
    return get


@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2"])
def test_weights_left_out_of_a_whole_save_are_warned_of_once(written, strategy):
    trained, frozen = written(strategy, "incomplete")["warnings"]
    assert "lacks 1 trained weights: blocks.0.norm.weight." in trained
    assert "lacks 1 frozen weights: blocks.1.norm.weight." in frozen
    assert written(strategy, "incomplete", 1)["warnings"] == []
    assert written(strategy, "whole")["warnings"] == []


def contents(checkpoint: Path) -> dict[str, bytes]:
    """Return what files hold, but for paths, random names and their checksums."""
    names = [
        name
        for name in files_below(checkpoint)
        if not name.endswith((".metadata", ".json", "training_args.bin"))
    ]
    return {name: (checkpoint / name).read_bytes() for name in names}


@pytest.mark.parametrize("strategy", ["fsdp2", *PARTS])
def test_fsdp_training_continues_during_a_save(written, strategy):
    """Until the step after it has ended no process may write; it is there for the next one, as
    if written at once.
    """
    for rank in (0, 1):
        # otherwise the first one writes alone, and does not wait for the other
        if rank == 0 or strategy in PARTS:
            assert written(strategy, "later", rank)["there"] == [[], ["checkpoint-2"]]
        assert (
            written(strategy, "later", rank)["losses"] == written(strategy, "now", rank)["losses"]
        )
    for step in (2, 4, 6):
        later, now = (
            written.folder / strategy / kind / f"checkpoint-{step}" for kind in ("later", "now")
        )
        assert problems(later) == []
        assert files_below(later) == files_below(now)
        assert contents(later) == contents(now)
        assert len(contents(now)) >= 7


def test_fsdp_checkpoint_without_copies_holds_later_weights(written):
    """Negative control: all but the last one, which no step follows."""
    folders = [written.folder / "fsdp2_parts" / kind for kind in ("alive", "now")]
    changed = [
        step
        for step in (2, 4, 6)
        if len({str(contents(folder / f"checkpoint-{step}")) for folder in folders}) > 1
    ]
    assert changed == [2, 4]


def test_fsdp_save_error_of_one_process_is_raised_on_both(written):
    for rank in (0, 1):
        result = written("fsdp2_parts", "refused", rank)
        assert (result["error"], result["step"], result["there"]) == ("not yours", 4, [[]])
    assert [path.name for path in (written.folder / "fsdp2_parts" / "refused").iterdir()] == []


def test_fsdp_full_disk_of_one_process_warns_on_both(written):
    for rank in (0, 1):
        result = written("fsdp2_parts", "full", rank)
        assert (result["error"], result["step"], result["there"]) == (None, 6, [[], []])
        assert result["losses"] == written("fsdp2_parts", "now", rank)["losses"]
    left = sorted(path.name for path in (written.folder / "fsdp2_parts" / "full").iterdir())
    assert left == ["checkpoint-4", "checkpoint-6", "saved"]
    assert (written.folder / "log.txt").read_text().count("No checkpoint was written") == 2


def test_fsdp_kill_during_a_save_leaves_the_previous_checkpoint(written, tmp_path):
    """From which a training, in a model with other first weights, continues to the same end."""
    started = {"log": tmp_path / "log.txt", "seconds": 240}
    codes, output = forked_ranks(SCRIPT, str(tmp_path), "killed:fsdp2_parts", **started)
    # The other process fails by itself, or is asked to end before it has.
    assert codes in ([-9, 1], [-9, -signal.SIGTERM]), output[-4000:]
    names = sorted(
        path.name for path in (tmp_path / "fsdp2_parts" / "killed").glob("*checkpoint-*")
    )
    assert [name.partition("partial-")[0] for name in names] == [".checkpoint-4.", "checkpoint-2"]
    finished_ranks(SCRIPT, str(tmp_path), "again:fsdp2_parts", **started)
    for rank in (0, 1):
        again, straight = (
            json.loads((place / f"{kind}:fsdp2_parts-rank{rank}.json").read_text())
            for place, kind in ((tmp_path, "again"), (written.folder, "now"))
        )
        assert {name: again[name] for name in (*NUMBERS, "best")} == {
            name: straight[name] for name in (*NUMBERS, "best")
        }
    left = sorted(path.name for path in (tmp_path / "fsdp2_parts" / "killed").iterdir())
    assert left == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
