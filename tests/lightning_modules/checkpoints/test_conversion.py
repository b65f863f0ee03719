"""Errors name files that cannot be converted, and nothing is overwritten or left half written."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from lightrainer.lightning_modules.checkpoints import read_weights, save_torch, save_weights
from lightrainer.lightning_modules.checkpoints.conversion import convert
from lightrainer.lightning_modules.common import process_identity
from lightrainer.lightning_modules.internals.loop_states import loops_at


def lightning_file(path: Path, **changes) -> Path:
    """The least that Lightning writes, at the end of the first epoch of 6 steps."""
    weight = torch.ones(2, 2)
    content = {
        "state_dict": {"model.a": weight, "model.b": weight, "loss.scale": torch.ones(1)},
        "global_step": 6,
        "epoch": 0,
        "loops": loops_at(epoch=1, done=0, steps=6, batches=6),
        "pytorch-lightning_version": "2.6.6",
        **changes,
    }
    torch.save(content, path)
    return path


@pytest.fixture
def file(tmp_path) -> Path:
    return lightning_file(tmp_path / "last.ckpt")


@pytest.fixture
def folder(tmp_path) -> Path:
    place = tmp_path / "checkpoint-6"
    save_weights(nn.Linear(2, 2), place)
    (place / "trainer_state.json").write_text(json.dumps({"global_step": 6, "epoch": 1.0}))
    return place


@pytest.mark.parametrize("target", ["out", "out/checkpoint-6", "out/../out"])
def test_conversion_names_the_folder_after_the_step(file, tmp_path, target):
    written = convert(file, tmp_path / target)
    assert written.resolve() == (tmp_path / "out" / "checkpoint-6").resolve()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["checkpoint-6"]
    weights = read_weights(written)
    assert set(weights) == {"a", "b"}
    state = json.loads((written / "trainer_state.json").read_text())
    assert (state["global_step"], state["epoch"]) == (6, 1.0)
    with pytest.raises(ValueError, match=r"checkpoint-7' .* step 6"):
        convert(file, tmp_path / "checkpoint-7")
    back = torch.load(convert(written, tmp_path / "b.ckpt"), weights_only=True)
    assert set(back["state_dict"]) == {
        "model.a",
        "model.b",
        "loss.scale",
    }, "with those beside the model's"


def test_conversion_overwrites_only_on_request(file, folder, tmp_path):
    (folder / "mine.txt").touch()
    for source, target in ((file, folder), (folder, file)):
        before = target.stat().st_mtime_ns
        with pytest.raises(
            FileExistsError, match=r"exists; pass --force \(force=True\) to replace it"
        ):
            convert(source, target)
        assert target.stat().st_mtime_ns == before
    convert(file, folder, force=True)
    assert not (folder / "mine.txt").exists()
    convert(folder, file, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-6", "last.ckpt"]


def test_conversion_with_another_prefix(tmp_path):
    file = lightning_file(
        tmp_path / "a.ckpt", state_dict={"net.a": torch.ones(1), "net.b": torch.zeros(1)}
    )
    with pytest.raises(
        ValueError,
        match=r"prefix='model\.': no weight name starts with it; the names are net\.a, net\.b",
    ):
        convert(file, tmp_path / "out")
    assert set(read_weights(convert(file, tmp_path / "out", prefix="net."))) == {"a", "b"}
    back = convert(tmp_path / "out" / "checkpoint-6", tmp_path / "b.ckpt", prefix="net.")
    assert set(torch.load(back, weights_only=True)["state_dict"]) == {"net.a", "net.b"}


def test_conversion_refuses_files_that_are_not_checkpoints(tmp_path):
    for content in ({"weight": torch.ones(1)}, [1], {"state_dict": {}, "global_step": 1}):
        save_torch(content, tmp_path / "a.ckpt")
        with pytest.raises(ValueError, match=r"a\.ckpt is not a checkpoint"):
            convert(tmp_path / "a.ckpt", tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_conversion_of_damaged_files(file, folder, tmp_path):
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"last\.ckpt is damaged"):
        convert(file, tmp_path / "out")
    (folder / "trainer_state.json").unlink()
    with pytest.raises(ValueError, match=r"trainer_state\.json is missing"):
        convert(folder, tmp_path / "b.ckpt")


def test_conversion_error_leaves_nothing_behind(file, folder, tmp_path, monkeypatch):
    before = sorted(path.name for path in tmp_path.iterdir())
    monkeypatch.setattr(
        torch, "save", lambda *args, **kwargs: (_ for _ in ()).throw(PermissionError("not yours"))
    )
    for source, target in ((file, tmp_path / "out"), (folder, tmp_path / "b.ckpt")):
        with pytest.raises(PermissionError):
            convert(source, target)
    assert [
        name for name in sorted(path.name for path in tmp_path.iterdir()) if name != "out"
    ] == before
    assert not list((tmp_path / "out").iterdir())


def test_conversion_removes_what_a_killed_one_has_left(file, folder, tmp_path):
    owner = f"{process_identity._machine()}-{2**22 + 1}-1"  # no process has this id
    (tmp_path / f".b.ckpt.partial-{owner}").write_bytes(b"half")
    (tmp_path / f".checkpoint-7.partial-{owner}").mkdir()
    foreign = tmp_path / ".mine.partial"
    foreign.touch()
    convert(folder, tmp_path / "b.ckpt")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"b.ckpt", "last.ckpt", "checkpoint-6", foreign.name}


def test_shards_become_one_file_with_all_names(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    save_weights(model, tmp_path / "checkpoint-6", max_shard_size=200)
    (tmp_path / "checkpoint-6" / "trainer_state.json").write_text(
        '{"global_step": 6, "epoch": 1.0}'
    )
    loaded = torch.load(convert(tmp_path / "checkpoint-6", tmp_path / "b.ckpt"), weights_only=True)[
        "state_dict"
    ]
    assert set(loaded) == {f"model.{name}" for name in model.state_dict()}
    assert all(
        torch.equal(loaded[f"model.{name}"], value) for name, value in model.state_dict().items()
    )
