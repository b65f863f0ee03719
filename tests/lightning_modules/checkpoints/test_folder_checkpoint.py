"""Folders from a plain Lightning Trainer with nothing but a callback."""

import os
from datetime import timedelta

import pytest
import torch
from lightning.pytorch.plugins import AsyncCheckpointIO
from torch.utils.data import IterableDataset

from helpers.lightning.tiny_modules import Net, make_trainer, points, same_weights
from lightrainer import Trainer, TrainingArguments
from lightrainer.lightning_modules import (
    FolderCheckpoint,
    FolderCheckpointIO,
    LossModule,
    build_loader,
)
from lightrainer.lightning_modules.internals import lightning_internals


def fit(callback, *, resume=None, epochs=2, evaluated=False, **options):
    """Four steps an epoch."""
    torch.manual_seed(5)
    module = LossModule(Net(dropout=0.2))
    callbacks = [callback] if callback else []
    with lightning_internals.quiet():
        options["enable_checkpointing"] = callback is not None
        trainer = make_trainer(max_epochs=epochs, callbacks=callbacks, **options)
        validation = build_loader(points(8), batch_size=4) if evaluated else None
        trainer.fit(module, build_loader(points(16), batch_size=4), validation, ckpt_path=resume)
    return module


def names(folder):
    return sorted(os.listdir(folder), key=lambda name: int(name.partition("-")[2]))


def test_folders_are_written_and_rotated_with_no_plugin(tmp_path):
    fit(FolderCheckpoint(tmp_path, every_n_train_steps=2, save_total_limit=2))
    assert names(tmp_path) == ["checkpoint-6", "checkpoint-8"]
    files = set(os.listdir(tmp_path / "checkpoint-8"))
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"} - files <= {
        "scheduler.pt"
    }


def test_folder_checkpoint_resumption_is_exact(tmp_path):
    checkpoint = FolderCheckpoint(tmp_path, every_n_train_steps=3)
    assert checkpoint.newest() is None
    whole = fit(checkpoint)
    again = FolderCheckpoint(tmp_path, every_n_train_steps=3)
    assert again.newest() == str(tmp_path / "checkpoint-6")
    assert same_weights(fit(again, resume=again.newest()), whole)
    assert same_weights(fit(again, resume=str(tmp_path / "checkpoint-3")), whole)


def test_by_epochs_is_the_default_and_time_is_possible(tmp_path):
    fit(FolderCheckpoint(tmp_path / "epochs"))
    # and no file of Lightning's own
    assert names(tmp_path / "epochs") == ["checkpoint-4", "checkpoint-8"]
    fit(FolderCheckpoint(tmp_path / "two", every_n_epochs=2))
    assert names(tmp_path / "two") == ["checkpoint-8"]
    fit(FolderCheckpoint(tmp_path / "time", train_time_interval=timedelta(hours=1)))
    assert not (tmp_path / "time").exists() or names(tmp_path / "time") == []


def test_folder_checkpoint_keeps_the_best(tmp_path):
    checkpoint = FolderCheckpoint(tmp_path, monitor="val_loss", mode="max", save_total_limit=1)
    fit(checkpoint, epochs=4, evaluated=True)
    best = os.path.basename(checkpoint.best_model_path)
    assert names(tmp_path) == sorted({best, "checkpoint-16"}, key=lambda name: int(name[11:]))
    assert best == "checkpoint-4"  # the highest loss is the first
    assert (tmp_path / best / "model.safetensors").exists()


def test_folder_checkpoint_keeps_a_matching_plugin_and_refuses_others(tmp_path):
    module = LossModule(Net())
    for plugin in (FolderCheckpointIO(module), AsyncCheckpointIO(FolderCheckpointIO(module))):
        with lightning_internals.quiet():
            saving = FolderCheckpoint(tmp_path, every_n_train_steps=2)
            options = {
                "max_steps": 2,
                "enable_checkpointing": True,
                "callbacks": [saving],
                "plugins": [plugin],
            }
            trainer = make_trainer(**options)
            trainer.fit(module, build_loader(points(16), batch_size=4))
        assert trainer.strategy.checkpoint_io is plugin
    assert names(tmp_path) == ["checkpoint-2"]
    with pytest.raises(ValueError, match="the plugin AsyncCheckpointIO"):
        fit(FolderCheckpoint(tmp_path), plugins=[AsyncCheckpointIO()])


def test_folder_checkpoint_that_cannot_be_is_refused(tmp_path):
    with pytest.raises(ValueError, match="save_total_limit=0"):
        FolderCheckpoint(tmp_path, save_total_limit=0)
    checkpoint = FolderCheckpoint(tmp_path)
    trainer = make_trainer()
    trainer.strategy.__class__ = type("FSDPStrategy", (type(trainer.strategy),), {})
    with pytest.raises(ValueError, match="FolderCheckpoint does not support FSDPStrategy; use"):
        checkpoint.setup(trainer, LossModule(Net()), "fit")


def test_folder_checkpoint_with_the_suffix_of_lightning_is_a_file(tmp_path):
    """`trainer.save_checkpoint("x.ckpt")`; other names are folders. Both resume to the same
    bits.
    """
    module = fit(FolderCheckpoint(tmp_path / "out"), epochs=1)
    module.trainer.save_checkpoint(tmp_path / "x.ckpt")
    module.trainer.save_checkpoint(tmp_path / "x")
    assert (tmp_path / "x.ckpt").is_file()
    assert (tmp_path / "x" / "model.safetensors").is_file()
    again = LossModule.load_from_checkpoint(tmp_path / "x.ckpt", model=Net(), weights_only=True)
    assert same_weights(again, module)
    whole = fit(FolderCheckpoint(tmp_path / "whole"))
    for name in ("x.ckpt", "x"):
        assert same_weights(
            fit(FolderCheckpoint(tmp_path / "out"), resume=str(tmp_path / name)), whole
        ), name


class Stream(IterableDataset):
    def __iter__(self):
        return iter(points(20))


@pytest.mark.parametrize("step", [1, 2, 3])
def test_folder_checkpoint_of_a_stream_resumes_in_the_trainer(tmp_path, step):
    """Five batches an epoch, in steps of three; the second step is the end of an epoch."""
    torch.manual_seed(5)
    module = LossModule(Net(), optimizer={"learning_rate": 0.05})
    saving = FolderCheckpoint(tmp_path, every_n_train_steps=1)
    options = {"enable_checkpointing": True, "callbacks": [saving], "accumulate_grad_batches": 3}
    with lightning_internals.quiet():
        trainer = make_trainer(max_steps=4, max_epochs=-1, **options)
        trainer.fit(module, build_loader(Stream(), batch_size=4))

    arguments = TrainingArguments(
        tmp_path / "resumed",
        max_steps=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=3,
        learning_rate=0.05,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        save_strategy="no",
        disable_tqdm=True,
        report_to=[],
    )
    resumed = Trainer(Net(), arguments, train_dataset=Stream())
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    for name, weight in resumed.model.state_dict().items():
        torch.testing.assert_close(weight, module.model.state_dict()[name])
