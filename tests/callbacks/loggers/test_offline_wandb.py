"""Weights & Biases, run offline: what it writes is what the reference writes."""

from pathlib import Path

import pytest

import lightrainer
from helpers.loggers import tracker_files
from helpers.loggers.offline_clients import files_with_the_secret, needs, train_both
from helpers.loggers.reported_training import (
    Small,
    callback_of,
    make_trainer,
    points,
    without_times,
)

pytestmark = needs("wandb")


@pytest.fixture
def wandb(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    import wandb

    yield wandb
    wandb.finish()


def ended(wandb):
    """The file of the present run, which is closed."""
    path = Path(wandb.run.settings.sync_file)
    wandb.finish()
    return path


def test_wandb_has_the_history_the_summary_and_the_configuration_of_the_reference(
    wandb, tmp_path, monkeypatch
):
    monkeypatch.setenv("WANDB_PROJECT", "mine")

    files = []

    def then(made):
        made.evaluate()
        made.predict(points(4))
        files.append(ended(wandb))

    train_both(tmp_path, "wandb", then, run_name="first")
    theirs, ours = map(tracker_files.wandb_run, files)
    histories = [[plain(entry) for entry in run["history"]] for run in (theirs, ours)]
    assert histories[0] == histories[1]
    assert all("train/loss" in entry for entry in histories[1][:4])
    assert "eval/loss" in histories[1][4]
    assert any("test/loss" in entry for entry in histories[1])
    assert plain(theirs["summary"]) == plain(ours["summary"])
    assert ours["summary"]["train_loss"] > 0
    assert (
        (ours["project"], ours["name"]) == (theirs["project"], theirs["name"]) == ("mine", "first")
    )
    # Older clients add the names that `*` has met, in any order.
    assert theirs["metrics"][:2] == ours["metrics"][:2] == ["train/global_step", "*"]
    same_description(theirs["config"], ours["config"])
    assert ours["config"]["model/num_parameters"] == 5
    assert [leaked for path in files for leaked in files_with_the_secret(path.parent)] == []


def plain(entry):
    return without_times({name: value for name, value in entry.items() if not name.startswith("_")})


def same_description(theirs, ours, different=("output_dir", "_wandb", "accelerator_config")):
    """All that the reference says of arguments and model, ours says, too."""
    missing = {
        name for name in theirs if not name.startswith(different) and ours.get(name) != theirs[name]
    }
    assert missing == set()
    assert (ours["learning_rate"], ours["width"], ours["hub_token"]) == (0.01, 4, "<HUB_TOKEN>")


def test_wandb_watches_the_model_and_keeps_it_with_its_checkpoints(wandb, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_LOG_MODEL", "checkpoint")
    monkeypatch.setenv("WANDB_WATCH", "all")
    watched = []
    run_class = wandb.sdk.wandb_run.Run
    monkeypatch.setattr(
        run_class, "watch", lambda self, model, **options: watched.append((model, options))
    )
    trainer = make_trainer(
        lightrainer, tmp_path / "out", report_to="wandb", save_strategy="steps", save_steps=2
    )
    callback = callback_of(trainer, "WandbCallback")
    assert lightrainer.callbacks.reads_checkpoints(callback)
    trainer.train()
    name = f"model-{callback.run_id}"
    assert watched == [(trainer.model, {"log": "all", "log_freq": 100})]
    aliases = [
        labels
        for artifact, labels in tracker_files.wandb_run(ended(wandb))["artifacts"]
        if artifact == name
    ]
    assert [sorted({*labels} - {"latest"}) for labels in aliases] == [
        ["base_model"],
        ["checkpoint_global_step_2", "epoch_0.5"],
        ["checkpoint_global_step_4", "epoch_1.0"],
        ["final_model"],
    ]


def test_wandb_trial_is_a_run_and_a_run_of_the_script_is_used(wandb, tmp_path, monkeypatch):
    from lightrainer.callbacks import TrainerControl, TrainerState, WandbCallback

    args = make_trainer(lightrainer, tmp_path / "out", run_name="search").args
    callback, runs = WandbCallback(), []
    for number in range(2):
        state = TrainerState(is_hyper_param_search=True, trial_name=f"trial-{number}")
        callback.on_train_begin(args, state, TrainerControl(), model=Small())
        runs.append((wandb.run.name, wandb.run.group, callback.run_id))
        callback.on_train_end(args, state, TrainerControl(), model=Small())
    assert [entry[:2] for entry in runs] == [("trial-0", "search"), ("trial-1", "search")]
    assert runs[0][2] != runs[1][2]
    assert args.run_name == "search"
    wandb.finish()
    script_run = wandb.init(project="own")
    make_trainer(lightrainer, tmp_path / "out", report_to="wandb").train()
    assert wandb.run is script_run


def test_wandb_disabled_does_nothing(wandb, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DISABLED", "true")
    make_trainer(lightrainer, tmp_path / "out", report_to="wandb").train()
    assert wandb.run.disabled
    assert not Path(wandb.run.settings.sync_file).exists()
