"""A Lightning file becomes a folder and a folder a file, and both resume to the same bits."""

import subprocess
import sys

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from helpers.comparing.bit_differences import differences
from helpers.parity.harness import run
from helpers.parity.interrupted_runs import interrupted
from helpers.parity.lightning_side import CASE, EVERY_STEP, WARNINGS, Plain
from helpers.parity.parity_datasets import points
from helpers.parity.parity_models import Classifier
from lightrainer.__main__ import main
from lightrainer.lightning_modules import LossModule
from lightrainer.lightning_modules.checkpoints import problems
from lightrainer.lightning_modules.checkpoints.conversion import convert

pytestmark = WARNINGS


def in_files(folder, **options):
    """A training of a Lightning user without any plugin of ours, which leaves a file a step."""
    return Plain(folder, save=EVERY_STEP, wrap=lambda _: None, **options).but_files().run()


def from_file(folder, **options):
    return Plain(folder, seed=99, wrap=lambda _: None, **options)


@pytest.fixture
def straight(ours, tmp_path):
    return run(ours, CASE, tmp_path / "straight").weights


@pytest.mark.parametrize("step", [3, 6])
def test_conversion_of_a_file_to_a_folder(ours, reference, straight, tmp_path, step):
    in_files(tmp_path / "files")
    folder = convert(tmp_path / "files" / f"checkpoint-{step}.ckpt", tmp_path / "out")
    assert folder == tmp_path / "out" / f"checkpoint-{step}"
    assert problems(folder) == []
    for api, name in ((ours, "ours"), (reference, "reference")):
        resumed = run(api, CASE.but(model_seed=99), tmp_path / name, resume=str(folder))
        assert not differences(straight, resumed.weights)
    assert not differences(straight, Plain(tmp_path / "plain", seed=99).run(folder).weights)


@pytest.mark.parametrize("step", [3, 6])
@pytest.mark.parametrize("writer", ["ours", "reference"])
def test_conversion_of_a_folder_to_a_file(request, straight, tmp_path, writer, step):
    """Also one that holds numbers of NumPy; Lightning reads it with its own safe loader."""
    interrupted(request.getfixturevalue(writer), CASE, step, tmp_path / "stopped")
    file = convert(tmp_path / "stopped" / f"checkpoint-{step}", tmp_path / "new" / "last.ckpt")
    torch.load(file, weights_only=True)
    assert [path.name for path in file.parent.iterdir()] == ["last.ckpt"]
    assert not differences(straight, from_file(tmp_path / "plain").run(file).weights)
    loaded = LossModule.load_from_checkpoint(file, model=Classifier())
    saved = torch.load(file, weights_only=True)["state_dict"]
    assert not differences(dict(loaded.state_dict()), saved)


def test_conversion_there_and_back(straight, tmp_path):
    """Through folder and file again nothing is lost: loops and callbacks of Lightning come
    through.
    """
    in_files(tmp_path / "files")
    folder = convert(tmp_path / "files" / "checkpoint-8.ckpt", tmp_path)
    file = convert(folder, tmp_path / "back.ckpt")
    before, after = (
        torch.load(path, weights_only=True)
        for path in (tmp_path / "files" / "checkpoint-8.ckpt", file)
    )
    packed = [checkpoint.pop("lightrainer_processes") for checkpoint in (before, after)]
    assert list(packed[0]) == list(packed[1]) == [0]
    assert not differences(before, after)
    assert not differences(straight, from_file(tmp_path / "plain").run(file).weights)


def test_conversion_of_a_file_inside_an_epoch_of_a_torch_loader(ours, tmp_path):
    """The script does not give the batches of an epoch; the conversion does."""
    in_files(tmp_path / "files", loader=lambda: DataLoader(points(22), batch_size=4))
    middle, end = (tmp_path / "files" / f"checkpoint-{step}.ckpt" for step in (3, 6))
    with pytest.raises(ValueError, match="3 batches into epoch 0"):
        convert(middle, tmp_path / "out")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
    for file, epoch in (
        (convert(middle, tmp_path / "out", batches_in_epoch=6), 0.5),
        (convert(end, tmp_path), 1.0),
    ):
        resumed = run(ours, CASE, tmp_path / "resumed", resume=str(file))
        assert resumed.history[0]["epoch"] == pytest.approx(epoch + 1 / 6)


# see the claim
@pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization:UserWarning")
@pytest.mark.parametrize("accumulation", [1, 4])
def test_conversion_of_a_file_of_a_facade_callback(ours, reference, tmp_path, accumulation):
    """A `ModelCheckpoint` among the callbacks of our Trainer: Lightning can read its files, and
    they convert.
    """
    saving = {"every_n_train_steps": 1, "save_top_k": -1, "filename": "{step}"}
    callback = ModelCheckpoint(dirpath=tmp_path / "files", **saving)
    case = CASE.but(arguments={"gradient_accumulation_steps": accumulation})
    noted = run(ours, case.but(extras=lambda api: {"callbacks": [callback]}), tmp_path / "noted")
    steps = len(list((tmp_path / "files").iterdir()))
    assert steps == {1: 12, 4: 4}[accumulation]
    for step in (1, steps // 2, steps // 2 + 1):
        torch.load(tmp_path / "files" / f"step={step}.ckpt", weights_only=True)
        folder = convert(tmp_path / "files" / f"step={step}.ckpt", tmp_path / "out")
        for api in (ours, reference):
            resumed = run(api, case.but(model_seed=99), tmp_path / "new", resume=str(folder))
            assert not differences(noted.weights, resumed.weights)
    if accumulation == 1:
        assert not differences(
            noted.weights, Plain(tmp_path / "plain", seed=99).run(folder).weights
        )


def test_conversion_by_the_command(tmp_path, monkeypatch, capsys):
    """As a program once, and in this process."""
    in_files(tmp_path / "files")
    monkeypatch.chdir(tmp_path)
    words = [sys.executable, "-m", "lightrainer", "convert", "files/checkpoint-3.ckpt", "out"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out/checkpoint-3\n", "")
    capsys.readouterr()
    with pytest.raises(SystemExit) as raised:
        main(["convert", "files/checkpoint-3.ckpt", "out"])
    assert raised.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "out/checkpoint-3 exists; pass --force" in output.err
    assert main(["convert", "files/checkpoint-3.ckpt", "out", "--force"]) == 0
    capsys.readouterr()
    assert main(["convert", "out/checkpoint-3", "back.ckpt"]) == 0
    assert capsys.readouterr().out == "back.ckpt\n"
