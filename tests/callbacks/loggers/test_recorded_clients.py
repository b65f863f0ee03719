"""Calls of the clients of trackers, recorded for our callback and the reference's in the same
training.
"""

import copy
import os

import pytest
import transformers
from transformers.integrations import integration_utils as reference

import lightrainer
from helpers.loggers import recorded_clients
from helpers.loggers.reported_training import (
    SECRET,
    Small,
    callback_of,
    make_trainer,
    without_times,
)
from lightrainer import callbacks
from lightrainer.callbacks import TrainerControl, TrainerState
from lightrainer.callbacks.loggers import availability


def called(record, *names):
    """The calls of these functions: name, positional and keyword arguments."""
    return [call for call in record.calls if not names or call[0] in names]


def both(make, monkeypatch, folder, report_to, then=lambda made: None, **changes):
    """Train with the reference and with ours, each with a fresh stand-in; returns what both
    recorded.
    """
    records = []
    for api in (transformers, lightrainer):
        record = make(monkeypatch)
        trainer = make_trainer(api, folder / "out", report_to=report_to, **changes)
        trainer.train()
        then(trainer)
        records.append(record)
    assert SECRET not in str(records[1].calls)
    assert records[1].calls
    return records


def timeless(calls):
    """Calls without what a clock measures."""
    return [
        (name, args, without_times(kwargs))
        for name, args, kwargs in calls
        if not is_time(args, kwargs)
    ]


def is_time(args, kwargs):
    text = str([*args[:1], kwargs.get("name"), kwargs.get("series")])
    return any(word in text for word in ("runtime", "per_second"))


# Azure ML


def test_azure_ml_is_told_what_the_reference_tells(monkeypatch, tmp_path):
    theirs, ours = both(
        recorded_clients.azureml, monkeypatch, tmp_path, "azure_ml", lambda made: made.evaluate()
    )
    assert timeless(theirs.calls) == timeless(ours.calls)
    assert (
        "Run.get_context.log",
        ("loss", ours.calls[1][1][1]),
        {"description": "loss"},
    ) == ours.calls[1]
    assert {args[0] for _, args, _ in ours.calls[1:]} >= {
        "loss",
        "learning_rate",
        "eval_loss",
        "train_loss",
    }


# Comet


@pytest.fixture
def comet_is_there(monkeypatch):
    monkeypatch.setattr(reference, "_is_comet_installed", True)
    monkeypatch.setattr(reference, "_is_comet_recent_enough", True)
    monkeypatch.setitem(availability.AVAILABLE, "comet_ml", lambda: True)


@pytest.mark.parametrize("mode", [None, "GET", "disabled"])
def test_comet_is_started_as_the_reference_starts_it(mode, comet_is_there, monkeypatch, tmp_path):
    """What it is told then is compared by its real client."""
    if mode:
        monkeypatch.setenv("COMET_MODE", mode)
    records = []
    for api in (transformers, lightrainer):
        records.append(recorded_clients.comet_ml(monkeypatch))
        make_trainer(api, tmp_path / "out", report_to="comet_ml", run_name="named").train()
    theirs, ours = (called(record, "start") for record in records)
    assert theirs == ours
    assert len(ours) == (mode != "disabled")


# ClearML


@pytest.fixture
def _fresh_counters(monkeypatch):
    for name in ("_train_run_counter", "_model_connect_counter"):
        monkeypatch.setattr(reference.ClearMLCallback, name, 0)
    for name, value in (
        ("log_suffix", ""),
        ("_task_created_in_callback", False),
        ("_should_close_on_train_end", None),
    ):
        monkeypatch.setattr(reference.ClearMLCallback, name, value)
    monkeypatch.setattr(callbacks.ClearMLCallback, "_training_counts", {})


SAVING = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
REPORTS = ("task.get_logger.report_scalar", "task.get_logger.report_single_value")


@pytest.mark.usefixtures("_fresh_counters")
def test_clearml_is_told_what_the_reference_tells(monkeypatch, tmp_path):
    monkeypatch.setenv("CLEARML_PROJECT", "mine")
    theirs, ours = both(recorded_clients.clearml, monkeypatch, tmp_path, "clearml", **SAVING)
    assert timeless(called(theirs, *REPORTS)) == timeless(called(ours, *REPORTS))
    titles = {(kwargs["title"], kwargs["series"]) for _, _, kwargs in called(ours, REPORTS[0])}
    assert titles >= {("train", "loss"), ("eval", "loss"), ("train", "learning_rate")}
    for name in (
        "Task.init",
        "OutputModel",
        "OutputModel.connect",
        "OutputModel.update_weights_package",
        "task.close",
    ):
        assert comparable(called(theirs, name)) == comparable(called(ours, name)) != []
    assert called(ours, "Task.init")[0][2]["project_name"] == "mine"
    assert len(called(ours, "model.Model.remove")) == len(called(theirs, "model.Model.remove")) == 2
    switches = [
        [kwargs["name"] for _, _, kwargs in called(record, "task.set_parameter")]
        for record in (theirs, ours)
    ]
    assert switches[0] == switches[1] != []
    configs = [called(record, "task.set_configuration_object")[0][2] for record in (theirs, ours)]
    assert {**configs[0], "description": ""} == {**configs[1], "description": ""}
    ((_, (copied,), options),) = called(theirs, "task._arguments.copy_from_dict")
    ((_, (updated,), _),) = called(ours, "task.update_parameters")
    expected = {f"{options['prefix']}/{name}" for name in copied}
    nested = {"Transformers/accelerator_config", "Transformers/fsdp_config"}
    assert {name for name in expected if name not in updated} <= nested
    assert updated["Transformers/fsdp_config/min_num_params"] == "0"
    assert updated["Transformers/learning_rate"] == "0.01"


def comparable(calls):
    """Tasks and models are other objects each time."""
    return [
        (name, {key: value for key, value in kwargs.items() if key != "task"})
        for name, _, kwargs in copy.copy(calls)
    ]


@pytest.mark.usefixtures("_fresh_counters")
def test_clearml_reopens_its_task_and_creates_one_per_training(monkeypatch, tmp_path):
    record = recorded_clients.clearml(monkeypatch)
    trainer = make_trainer(lightrainer, tmp_path / "out", report_to="clearml")
    trainer.train()
    trainer.evaluate()
    trainer.train()
    inits = [kwargs.get("continue_last_task") for _, _, kwargs in called(record, "Task.init")]
    assert inits == [None, "task-0", None]
    assert len(called(record, "task.close")) == 3


@pytest.mark.usefixtures("_fresh_counters")
def test_clearml_task_of_the_script_is_used_and_left_open(monkeypatch, tmp_path):
    task = recorded_clients.Task(recorded_clients.Recorder(), "own")
    record = recorded_clients.clearml(monkeypatch, current_task=task)
    task._record = record
    trainer = make_trainer(lightrainer, tmp_path / "out", report_to="clearml")
    assert not lightrainer.callbacks.reads_checkpoints(callback_of(trainer, "ClearMLCallback"))
    trainer.train()
    make_trainer(lightrainer, tmp_path / "out", report_to="clearml").train()
    assert called(record, "Task.init", "task.close") == []
    assert {kwargs["title"] for _, _, kwargs in called(record, REPORTS[0])} == {
        "train",
        "eval",
        "train_2",
        "eval_2",
    }


# DagsHub and MLflow


def test_dagshub_is_told_what_the_reference_tells(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://dagshub.com/me/repository.mlflow")
    monkeypatch.setenv("HF_DAGSHUB_LOG_ARTIFACTS", "TRUE")
    monkeypatch.setenv("BRANCH", "second")
    theirs, ours = both(
        recorded_clients.dagshub, monkeypatch, tmp_path, "dagshub", run_name="named"
    )
    for name in (
        "Repo",
        "Repo.directory",
        "Repo.directory.add_dir",
        "set_tracking_uri",
        "start_run",
    ):
        assert called(theirs, name) == called(ours, name) != []
    metrics = [
        [without_times(k["metrics"]) for _, _, k in called(record, "log_metrics")]
        for record in (theirs, ours)
    ]
    assert metrics[0] == metrics[1] != []
    assert called(ours, "Repo") == [
        ("Repo", (), {"owner": "me", "name": "repository", "branch": "second"})
    ]
    assert called(ours, "end_run") == [("end_run", ("FINISHED",), {})]
    assert (tmp_path / "out" / "dataset.pt").exists()


def test_mlflow_parameters_are_cut_as_asked(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("MLFLOW_MAX_LOG_PARAMS", "105")
    record = recorded_clients.mlflow(monkeypatch)
    trainer = make_trainer(lightrainer, tmp_path / "out", report_to="mlflow")
    trainer.model.config.to_dict = lambda: {"long": "x" * 6001, "short": 1}
    trainer.train()
    assert [len(args[0]) for _, args, _ in called(record, "log_params")] == [100, 5]
    assert "up to 6000 characters, so these parameters are left out: long" in caplog.text


# Flyte


def test_flyte_is_given_checkpoints_and_the_log(monkeypatch, tmp_path):
    theirs, ours = both(
        recorded_clients.flytekit,
        monkeypatch,
        tmp_path,
        "flyte",
        save_strategy="steps",
        save_steps=2,
    )
    assert called(theirs, "checkpoint.save") == called(ours, "checkpoint.save") != []
    tables = [
        [without_times(row) for row in called(record, "Deck")[0][1][1]] for record in (theirs, ours)
    ]
    assert str(tables[0]) == str(tables[1])
    quiet = callbacks.FlyteCallback(save_log_history=False, sync_checkpoints=False)
    assert not lightrainer.callbacks.reads_checkpoints(quiet)
    assert lightrainer.callbacks.reads_checkpoints(callbacks.FlyteCallback())


# SwanLab


@pytest.mark.parametrize("trial", [None, "trial-1"])
@pytest.mark.parametrize("run_name", [None, "named"])
def test_swanlab_is_told_what_the_reference_tells(trial, run_name, monkeypatch, tmp_path):
    monkeypatch.setenv("SWANLAB_PROJECT", "mine")
    monkeypatch.setenv("SWANLAB_RUN_ID", "abc")
    logs, records = {"loss": 1.0, "train_loss": 2.0}, []
    for kind in (reference.SwanLabCallback, callbacks.SwanLabCallback):
        record = recorded_clients.swanlab(monkeypatch)
        args = make_trainer(
            lightrainer, tmp_path / "out", run_name=run_name, resume_from_checkpoint="x"
        ).args
        callback, state = kind(), TrainerState(global_step=3, trial_name=trial)
        callback.on_train_begin(args, state, TrainerControl(), model=Small())
        callback.on_log(args, state, TrainerControl(), model=Small(), logs=logs)
        callback.on_predict(args, state, TrainerControl(), {"test_loss": 1.0})
        callback.on_train_end(args, state, TrainerControl())
        records.append(called(record, "init", "log", "config"))
    assert records[0] == records[1]
    assert records[1][0][2]["id"] == "abc"
    assert records[1][0][2]["resume"] == "allow"
    assert os.environ["SWANLAB_PROJECT"] == "mine"


# Trackio on a Space


def test_trackio_is_told_what_the_reference_tells(monkeypatch, tmp_path):
    options = {
        "run_name": "named",
        "project": "mine",
        "trackio_space_id": "trackio",
        "hub_private_repo": True,
    }
    theirs, ours = both(recorded_clients.trackio, monkeypatch, tmp_path, "trackio", **options)
    assert called(theirs, "init") == called(ours, "init") != []
    assert len(called(ours, "finish")) == len(called(theirs, "finish")) == 1


@pytest.mark.parametrize("asked", [None, "page", False])
def test_trackio_static_space_is_created_after_the_training(asked, monkeypatch, tmp_path):
    record = recorded_clients.trackio(monkeypatch)
    trainer = make_trainer(
        lightrainer,
        tmp_path / "out",
        report_to="trackio",
        trackio_static_space_id=asked,
        trackio_bucket_id="me/data",
    )
    trainer.model.model_tags = ["own", "trackio:https://old"]
    trainer.train()
    assert called(record, "init")[0][2]["bucket_id"] == "me/data"
    frozen = [kwargs for _, _, kwargs in called(record, "freeze")]
    if asked is False:
        assert (frozen, trainer.model.model_tags) == ([], ["own", "trackio:https://old"])
        return
    (kwargs,) = frozen
    assert kwargs["new_space_id"].startswith(asked or "huggingface-static-")
    url = f"https://huggingface.co/spaces/me/{kwargs['new_space_id']}"
    assert trainer.model.model_tags == ["own", "trackio", f"trackio:{url}"]


def test_trackio_local_project_is_uploaded_with_the_model(monkeypatch, tmp_path):
    record = recorded_clients.trackio(monkeypatch, space=None)
    trainer = make_trainer(
        lightrainer,
        tmp_path / "out",
        report_to="trackio",
        trackio_space_id=None,
        project="My Run!",
    )
    trainer.train()
    assert called(record, "freeze") == []
    trainer.callback_handler.call_event(
        "on_push_begin", trainer.args, trainer.state, trainer.control
    )
    ((_, _, kwargs),) = called(record, "sync")
    assert (kwargs["project"], kwargs["sdk"], kwargs["space_id"][:14]) == (
        "My Run!",
        "static",
        "my-run-static-",
    )
    assert trainer.model.model_tags[0] == "trackio"


def test_trackio_upload_without_a_model_warns_of_nothing(monkeypatch, tmp_path, caplog):
    record = recorded_clients.trackio(monkeypatch, space=None)
    options = {"report_to": "trackio", "trackio_space_id": None}
    trainer = make_trainer(lightrainer, tmp_path / "out", **options)
    trainer.train()
    trainer.callback_handler.model = None
    caplog.clear()
    trainer.callback_handler.call_event(
        "on_push_begin", trainer.args, trainer.state, trainer.control
    )
    assert len(called(record, "sync")) == 1
    assert "failed to log" not in caplog.text
