"""Contract of the callbacks of all trackers."""

import inspect
import logging
from types import SimpleNamespace

import pytest
import transformers
from transformers.integrations import integration_utils as reference

import lightrainer
from helpers.loggers import recorded_clients
from helpers.loggers.reported_training import Small, make_trainer
from lightrainer import callbacks
from lightrainer.callbacks import EVENTS, TrainerControl, TrainerState, reads_checkpoints
from lightrainer.callbacks.loggers import availability

STAND_INS = {
    "azure_ml": (recorded_clients.azureml, "Run.get_context.log"),
    "clearml": (recorded_clients.clearml, "task.get_logger.report_scalar"),
    "comet_ml": (recorded_clients.comet_ml, "experiment.log_metrics"),
    "dagshub": (recorded_clients.dagshub, "log_metrics"),
    "flyte": (recorded_clients.flytekit, "checkpoint.save"),
    "mlflow": (recorded_clients.mlflow, "log_metrics"),
    "swanlab": (recorded_clients.swanlab, "log"),
    "trackio": (recorded_clients.trackio, "log"),
}
"""Their clients, and the calls that send numbers. Of codecarbon, dvclive and wandb the real ones
are in `test_offline.py`, of tensorboard in `test_tensorboard.py`.
"""
EXTRA = {
    "on_log": {"logs": {"loss": 1.5, "eval_loss": 1.0, "note": "text"}},
    "on_predict": {"metrics": {"test_loss": 2.0}},
    "on_evaluate": {"metrics": {"eval_loss": 1.0}},
}

CLASSES = {name: kind for name, (_, kind, _) in availability.TRACKERS.items()}


@pytest.fixture(params=STAND_INS)
def tracker(request, monkeypatch):
    """Its name, its callback, what its client is told, and the call that sends it numbers."""
    monkeypatch.setitem(availability.AVAILABLE, "comet_ml", lambda: True)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://dagshub.com/me/repository.mlflow")
    monkeypatch.setattr(callbacks.ClearMLCallback, "_training_counts", {})
    name = request.param
    stand_in, sends = STAND_INS[name]
    return SimpleNamespace(
        name=name,
        make=getattr(callbacks, CLASSES[name]),
        record=stand_in(monkeypatch),
        sends=sends,
    )


@pytest.mark.parametrize("name", CLASSES)
def test_constructors_take_what_those_of_the_reference_take(name):
    kinds = getattr(callbacks, CLASSES[name]), getattr(reference, CLASSES[name])
    ours, theirs = (
        [(p.name, p.default, p.kind) for p in inspect.signature(kind).parameters.values()]
        for kind in kinds
    )
    assert ours == theirs


@pytest.mark.parametrize("name", CLASSES)
def test_logger_missing_package_is_named_at_construction(name, monkeypatch, tmp_path):
    monkeypatch.setattr(availability, "is_installed", lambda module: False)
    with pytest.raises(
        ImportError, match=rf"report_to='{name}'.*pip install {availability.TRACKERS[name][2]}"
    ) as error:
        make_trainer(lightrainer, tmp_path / "out", report_to=name)
    assert isinstance(error.value, RuntimeError), "as in the reference"


@pytest.mark.parametrize("event", EVENTS)
def test_logger_events_work_without_earlier_ones(tracker, event, tmp_path):
    args, state, control = (
        make_trainer(lightrainer, tmp_path / "out").args,
        TrainerState(global_step=2),
        TrainerControl(),
    )
    callback = tracker.make()
    everything = {
        "model": Small(),
        "processing_class": None,
        "optimizer": None,
        "lr_scheduler": None,
    }
    everything |= {"train_dataloader": None, "eval_dataloader": None}
    assert (
        getattr(callback, event)(args, state, control, **everything, **EXTRA.get(event, {})) is None
    )
    callback.on_train_end(args, state, control, **everything)


def test_logger_other_ranks_report_nothing(tracker, tmp_path):
    args = make_trainer(lightrainer, tmp_path / "out").args
    state = TrainerState(
        is_world_process_zero=False, is_local_process_zero=False, is_hyper_param_search=True
    )
    callback = tracker.make()
    tracker.record.calls.clear()
    for event in EVENTS:
        getattr(callback, event)(
            args, state, TrainerControl(), model=Small(), **EXTRA.get(event, {})
        )
    assert tracker.record.calls == []


def test_logger_run_that_cannot_be_opened_raises_before_the_first_step(
    tracker, monkeypatch, tmp_path, caplog
):
    if tracker.name in ("azure_ml", "flyte"):
        pytest.skip("the tracker opens no run")
    trainer = make_trainer(lightrainer, tmp_path / "out", report_to=tracker.name)

    def unreachable(*args, **kwargs):
        raise ConnectionError("no route to the server")

    for call in ("Task.init", "start", "start_run", "init"):
        tracker.record.answers[call] = unreachable
    with pytest.raises(ConnectionError, match="no route"):
        trainer.train()
    assert trainer.state.global_step == 0
    assert f"report_to='{tracker.name}': opening a run failed (ConnectionError)" in caplog.text


def test_logger_network_failure_does_not_end_the_training(tracker, tmp_path, caplog):
    trainer = make_trainer(
        lightrainer, tmp_path / "out", report_to=tracker.name, save_strategy="steps", save_steps=1
    )

    def gone(*args, **kwargs):
        raise ConnectionError("gone")

    tracker.record.answers[tracker.sends] = gone
    trainer.train()
    assert trainer.state.global_step == 4
    records = [
        record
        for record in caplog.records
        if record.name.startswith("lightrainer.callbacks.loggers")
    ]
    messages = [record.getMessage() for record in records if record.levelno == logging.WARNING]
    once = [text for text in messages if "(ConnectionError: gone). Training continues" in text]
    assert len(once) == 1
    assert any(text.startswith(f"{tracker.name} failed to log ") for text in messages)


def test_logger_errors_in_overrides_are_not_hidden(monkeypatch, tmp_path):
    recorded_clients.mlflow(monkeypatch)

    class Own(callbacks.MLflowCallback):
        def on_log(self, args, state, control, **kwargs):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make_trainer(lightrainer, tmp_path / "out", [Own()]).train()


def test_logger_opens_a_run_per_trial(tracker, tmp_path):
    args, callback = make_trainer(lightrainer, tmp_path / "out").args, tracker.make()
    opens = {
        "clearml": "Task.init",
        "comet_ml": "start",
        "mlflow": "start_run",
        "dagshub": "start_run",
    }
    opened = opens.get(tracker.name, "init")
    for trial in ("trial-1", "trial-2"):
        state = TrainerState(is_hyper_param_search=True, trial_name=trial)
        callback.on_train_begin(args, state, TrainerControl(), model=Small())
        callback.on_log(args, state, TrainerControl(), logs={"loss": 1.0})
        callback.on_train_end(args, state, TrainerControl())
    expected = 0 if tracker.name in ("azure_ml", "flyte") else 2
    assert len([name for name, *_ in tracker.record.calls if name == opened]) == expected


def test_checkpoints_are_waited_for_only_where_they_are_uploaded(tracker):
    callback = tracker.make()
    assert reads_checkpoints(callback) == (tracker.name in ("clearml", "flyte"))

    class Own(tracker.make):
        def on_save(self, args, state, control, **kwargs):
            """Look at the files."""

    assert reads_checkpoints(Own())


def test_logger_serves_the_trainer_of_the_reference(tracker, tmp_path):
    """Its Trainer calls the events, its state and arguments are read."""
    trainer = make_trainer(
        transformers, tmp_path / "out", [tracker.make()], save_strategy="steps", save_steps=2
    )
    trainer.train()
    assert any(name == tracker.sends for name, *_ in tracker.record.calls)
