"""A training resumed from a checkpoint that another one uploaded equals one that was never stopped,
bit for bit.
"""

import shutil

import pytest

from helpers.trainer.tiny_trainings import (
    At,
    losses,
    make_trainer,
    same_bits,
    trained_trainer,
    weights,
    with_trainer_in_callbacks,
)

NAME = "me/model"


def pushing(folder, **changes):
    options = {
        "hub_model_id": NAME,
        "save_strategy": "steps",
        "save_steps": 1,
        "num_train_epochs": 2,
        **changes,
    }
    return with_trainer_in_callbacks(make_trainer(folder, push_to_hub=True, **options))


def stop(host, state, control):
    control.should_training_stop = True


@pytest.mark.parametrize("strategy", ["checkpoint", "all_checkpoints"])
def test_hub_resumption_on_another_machine_is_exact(hub, tmp_path, strategy):
    whole = trained_trainer(tmp_path / "whole", num_train_epochs=2)
    first = pushing(
        tmp_path / "first", hub_strategy=strategy, callbacks=[At("on_step_end", stop, step=3)]
    )
    first.train()
    assert first.state.global_step == 3
    second = pushing(tmp_path / "second", hub_strategy=strategy)
    second.train(
        resume_from_checkpoint="last-checkpoint" if strategy == "checkpoint" else "checkpoint-3"
    )
    assert second.state.global_step == 8
    assert losses(second) == losses(whole)
    assert same_bits(weights(second.model), weights(whole.model))


def test_hub_resumption_from_another_branch(hub, tmp_path):
    first = pushing(tmp_path / "first", hub_strategy="checkpoint", hub_revision="draft")
    first.train()
    second = make_trainer(
        tmp_path / "second", hub_model_id=NAME, hub_revision="draft", num_train_epochs=2
    )
    second.train(resume_from_checkpoint="last-checkpoint")
    assert second.state.global_step == 8
    third = make_trainer(tmp_path / "third", hub_model_id=NAME)
    with pytest.raises(FileNotFoundError, match="nor in the repository 'me/model'"):
        third.train(resume_from_checkpoint="last-checkpoint")


def test_hub_resumption_prefers_a_local_folder(hub, tmp_path, monkeypatch):
    """As in the reference, where it is a path like any other; and then the one of a clone in
    `output_dir`.
    """
    pushing(tmp_path / "first", hub_strategy="end").train()
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tmp_path / "first" / "checkpoint-2", tmp_path / "second" / "last-checkpoint")
    trainer = pushing(tmp_path / "second", num_train_epochs=1, save_strategy="no")
    trainer.train(resume_from_checkpoint="last-checkpoint")
    assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry] == [1, 2, 3, 4]
    assert not hub.asked("GET .*/resolve/")
    shutil.copytree(tmp_path / "first" / "checkpoint-4", tmp_path / "last-checkpoint")
    nothing_left = pushing(tmp_path / "second", num_train_epochs=1, save_strategy="no")
    nothing_left.train(resume_from_checkpoint="last-checkpoint")
    assert nothing_left.state.global_step == 4
    assert "last-checkpoint/model.safetensors" not in hub.repos[NAME].files(), (
        "a clone's is not uploaded again"
    )


def test_hub_resumption_without_a_checkpoint_raises(hub, tmp_path):
    trainer = pushing(tmp_path / "out")
    with pytest.raises(FileNotFoundError, match="hub_strategy='checkpoint'"):
        trainer.train(resume_from_checkpoint="last-checkpoint")


def test_hub_resumption_refuses_a_damaged_checkpoint(hub, tmp_path):
    pushing(tmp_path / "first", hub_strategy="checkpoint").train()
    newest = hub.repos[NAME].branches["main"][-1]
    newest.files["last-checkpoint/optimizer.pt"] = newest.files["last-checkpoint/optimizer.pt"][
        :-200
    ]
    trainer = make_trainer(tmp_path / "second", hub_model_id=NAME)
    with pytest.raises(ValueError, match=r"optimizer\.pt"):
        trainer.train(resume_from_checkpoint="last-checkpoint")
