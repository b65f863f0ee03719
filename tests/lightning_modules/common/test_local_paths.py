"""An address of some storage is no folder: it is refused at every door, and no folder `s3:` is made."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models
from torch import nn

from lightrainer import PreTrainedTokenizerFast, Trainer, TrainingArguments
from lightrainer.lightning_modules.checkpoints.conversion import convert
from lightrainer.lightning_modules.checkpoints.folder_checkpoint import FolderCheckpoint
from lightrainer.lightning_modules.checkpoints.weights import save_weights
from lightrainer.lightning_modules.common.local_paths import remote_fault


def arguments(folder="out", **more):
    return TrainingArguments(folder, use_cpu=True, report_to="none", **more)


def set_later(address):
    trainer = Trainer(nn.Linear(1, 1), arguments(), train_dataset=[{"input": 1}])
    trainer.args.output_dir = address
    trainer.train()


def tokenizer():
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))


def trainer():
    return Trainer(nn.Linear(1, 1), arguments(), train_dataset=[{"input": 1}])


DOORS = {
    "output_dir": lambda address: arguments(address),
    "output_dir, as a Path": lambda address: arguments(Path(address)),
    "output_dir, set later": set_later,
    "save_model": lambda address: trainer().save_model(address),
    "resume_from_checkpoint": lambda address: trainer().train(resume_from_checkpoint=address),
    "save_weights": lambda address: save_weights(nn.Linear(1, 1), address),
    "accelerator.save_model": lambda address: trainer().accelerator.save_model(nn.Linear(1, 1), address),
    "tokenizer.save_pretrained": lambda address: tokenizer().save_pretrained(address),
    "FolderCheckpoint": lambda address: FolderCheckpoint(address),
}


@pytest.mark.parametrize("door", DOORS)
def test_it_is_refused_before_anything_is_written(tmp_path, monkeypatch, door):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"='s3:/+bucket/x' is an address \(s3\).*Pass a local folder"):
        DOORS[door]("s3://bucket/x")
    assert {path.name for path in tmp_path.iterdir()} <= {"out"}


def test_a_checkpoint_is_not_turned_around_into_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, OSError)):
        convert(str(tmp_path), "s3://bucket/x.ckpt")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["gs://a", "hf://datasets/a", "abfss://c@a/b", "https://a/b", "dbfs:/a", "S3://a"])
def test_addresses(address):
    assert "is an address" in str(remote_fault(address, "output_dir"))
    assert "is an address" in str(remote_fault(Path(address), "output_dir"))


@pytest.mark.parametrize(
    "path", ["out", "/tmp/out", "./s3:/x", "C:/out", "c:\\out", "runs/12:30/x", "12:30", "~/a", None, 3]
)
def test_paths(path):
    assert remote_fault(path, "output_dir") is None
