"""A storage URL is not a folder: most entry points refuse it, and no folder `s3:` is created."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models
from torch import nn

from lightrainer import PreTrainedTokenizerFast, Trainer, TrainingArguments
from lightrainer.lightning_modules.checkpoints.conversion import convert
from lightrainer.lightning_modules.checkpoints.folder_checkpoint import FolderCheckpoint
from lightrainer.lightning_modules.checkpoints.weights import save_weights
from lightrainer.lightning_modules.common.local_paths import is_url, local_folder, url_of


def arguments(folder="out", **more):
    return TrainingArguments(folder, use_cpu=True, report_to="none", **more)


def tokenizer():
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    )


def make_trainer():
    return Trainer(nn.Linear(1, 1), arguments(), train_dataset=[{"input": 1}])


DOORS = {
    "save_model": lambda address: make_trainer().save_model(address),
    "save_weights": lambda address: save_weights(nn.Linear(1, 1), address),
    "accelerator.save_model": (
        lambda address: make_trainer().accelerator.save_model(nn.Linear(1, 1), address)
    ),
    "tokenizer.save_pretrained": lambda address: tokenizer().save_pretrained(address),
    "FolderCheckpoint": lambda address: FolderCheckpoint(address),
}


@pytest.mark.parametrize("door", DOORS)
def test_address_is_refused_before_anything_is_written(tmp_path, monkeypatch, door):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"='s3:/+bucket/x' is a URL,.*Pass a local folder"):
        DOORS[door]("s3://bucket/x")
    assert {path.name for path in tmp_path.iterdir()} <= {"out"}


def test_local_paths_do_not_turn_a_checkpoint_into_an_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, OSError)):
        convert(str(tmp_path), "s3://bucket/x.ckpt")
    assert list(tmp_path.iterdir()) == []


def test_local_paths_refuse_an_output_dir_set_later(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = make_trainer()
    trainer.args.output_dir = "s3://bucket/x"
    with pytest.raises(
        ValueError,
        match=r"output_dir='s3://bucket/x' is an address that was set after construction.*TrainingArguments",
    ):
        trainer.train()


@pytest.mark.parametrize(
    "address", ["gs://a", "hf://datasets/a", "abfss://c@a/b", "https://a/b", "dbfs:/a", "S3://a"]
)
def test_addresses_are_recognized(address):
    assert is_url(address)
    assert is_url(Path(address))


@pytest.mark.parametrize(
    "address", ["memory://a/-/b", "file:///tmp/a", "http://host:80/a", "file:///tmp/a/"]
)
def test_local_paths_folder_of_an_address_names_it(address, tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTRAINER_STORES", str(tmp_path))
    folder = local_folder(address)
    assert url_of(folder) == address.rstrip("/")
    assert url_of(f"{folder}/checkpoint-4") == f"{address.rstrip('/')}/checkpoint-4"
    assert Path(folder).is_relative_to(tmp_path)
    assert [url_of(place) for place in (tmp_path, tmp_path / "file", tmp_path.parent, "out")] == [
        None
    ] * 4


@pytest.mark.parametrize(
    "path",
    ["out", "/tmp/out", "./s3:/x", "C:/out", "c:\\out", "runs/12:30/x", "12:30", "~/a", None, 3],
)
def test_paths_are_not_addresses(path):
    assert not is_url(path)
