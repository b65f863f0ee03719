"""MLflow with a database on this machine: what it writes is what the reference writes."""

import os
from pathlib import Path

import pytest

import lightrainer
from helpers.loggers import tracker_files
from helpers.loggers.offline_clients import needs, train_both
from helpers.loggers.reported_training import SECRET, callback_of, make_trainer, without_times

# The filter is for MLflow 3.17 beside SQLAlchemy 2.1.
pytestmark = [
    needs("mlflow"),
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One database for all: it takes seconds to make."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def mlflow(monkeypatch, store, request):
    """The client, with an experiment of this test's name."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)
    import mlflow

    yield mlflow
    while mlflow.active_run():
        mlflow.end_run()


@pytest.fixture
def mlflow_runs(mlflow, store, request):
    """Read the runs of this test."""
    return lambda: [
        run for run in tracker_files.mlflow_runs(store) if run["experiment"] == request.node.name
    ]


def test_mlflow_has_the_metrics_and_parameters_of_the_reference(mlflow_runs, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TAGS", '{"stage": "first"}')
    monkeypatch.setenv("MLFLOW_FLATTEN_PARAMS", "1")
    train_both(tmp_path, "mlflow", run_name="named")
    theirs, ours = mlflow_runs()
    assert without_times(theirs["metrics"]) == without_times(ours["metrics"])
    assert [step for step, _ in ours["metrics"]["loss"]] == [1, 2, 3, 4]
    assert (
        set(ours["metrics"])
        == set(theirs["metrics"])
        >= {"eval_loss", "train_loss", "learning_rate", "grad_norm"}
    )
    assert (
        (ours["name"], ours["status"])
        == (theirs["name"], theirs["status"])
        == ("named", "FINISHED")
    )
    assert ours["tags"]["stage"] == "first"
    assert {
        name for name in theirs["params"] if ours["params"].get(name) != theirs["params"][name]
    } == {"output_dir"}
    assert (ours["params"]["nested.kinds.first"], ours["params"]["hub_token"]) == (
        "linear",
        "<HUB_TOKEN>",
    )
    assert SECRET not in str(ours)


def test_mlflow_later_logs_go_to_the_same_run_and_another_training_to_another(
    mlflow, mlflow_runs, tmp_path
):
    trainer = make_trainer(lightrainer, tmp_path / "out", report_to="mlflow")
    callback = callback_of(trainer, "MLflowCallback")
    trainer.train()
    first = callback.run_id
    assert mlflow.active_run() is None
    trainer.evaluate()
    mlflow.flush_async_logging()
    trainer.train()
    runs = mlflow_runs()
    assert [run["id"] for run in runs] == [first, callback.run_id]
    assert [len(run["metrics"]["eval_loss"]) for run in runs] == [2, 1]
    assert {run["status"] for run in runs} == {"FINISHED"}


def test_mlflow_run_of_the_script_is_used_and_left_open(mlflow, mlflow_runs, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_MAX_LOG_PARAMS", "3")
    mlflow.set_experiment(os.environ["MLFLOW_EXPERIMENT_NAME"])
    script_run = mlflow.start_run(run_name="own")
    make_trainer(lightrainer, tmp_path / "out", report_to="mlflow").train()
    assert mlflow.active_run().info.run_id == script_run.info.run_id
    monkeypatch.setenv("MLFLOW_NESTED_RUN", "1")
    make_trainer(lightrainer, tmp_path / "out", report_to="mlflow", run_name="inner").train()
    assert mlflow.active_run().info.run_id == script_run.info.run_id
    mlflow.end_run()
    monkeypatch.delenv("MLFLOW_NESTED_RUN")
    monkeypatch.setenv("MLFLOW_RUN_ID", script_run.info.run_id)
    trainer = make_trainer(lightrainer, tmp_path / "out", report_to="mlflow")
    trainer.train()
    first, inner = mlflow_runs()
    assert len(first["params"]) == 3
    assert len(first["metrics"]["loss"]) == 8, "the run was continued"
    assert inner["tags"]["mlflow.parentRunId"] == script_run.info.run_id


def test_mlflow_keeps_checkpoints_when_asked(mlflow_runs, tmp_path, monkeypatch):
    plain = make_trainer(lightrainer, tmp_path / "out", report_to="mlflow")
    assert not lightrainer.callbacks.reads_checkpoints(callback_of(plain, "MLflowCallback"))
    monkeypatch.setenv("HF_MLFLOW_LOG_ARTIFACTS", "TRUE")
    trainer = make_trainer(
        lightrainer, tmp_path / "out", report_to="mlflow", save_strategy="steps", save_steps=2
    )
    assert lightrainer.callbacks.reads_checkpoints(callback_of(trainer, "MLflowCallback"))
    trainer.train()
    (run,) = mlflow_runs()
    assert run["artifacts"] == ["checkpoint-2", "checkpoint-4"]
    assert (Path(run["artifact_uri"]) / "checkpoint-4" / "model.safetensors").exists()


def test_mlflow_run_is_closed_after_an_error(mlflow, mlflow_runs, tmp_path):
    class Stumbles(lightrainer.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise ArithmeticError("in the middle")

    trainer = make_trainer(lightrainer, tmp_path / "out", [Stumbles()], report_to="mlflow")
    callback = callback_of(trainer, "MLflowCallback")
    with pytest.raises(ArithmeticError):
        trainer.train()
    assert mlflow.active_run() is not None
    callback.__del__()
    (run,) = mlflow_runs()
    assert (mlflow.active_run(), run["status"]) == (None, "FAILED")


def test_mlflow_resumption_keeps_its_run(mlflow, mlflow_runs, tmp_path, monkeypatch, caplog):
    """Unless the environment names another one, or it was deleted, which is logged."""

    def train(resumed=True, **changes):
        folder, saved = tmp_path / "out", {"save_strategy": "steps", "save_steps": 2}
        trainer = make_trainer(lightrainer, folder, report_to="mlflow", **saved, **changes)
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2") if resumed else None)
        return callback_of(trainer, "MLflowCallback").run_id

    first = train(resumed=False)
    assert train(warmup_steps=1) == first
    (run,) = mlflow_runs()
    assert [step for step, _ in run["metrics"]["loss"]] == [1, 2, 3, 4, 3, 4]
    assert run["params"]["warmup_steps"] == "0"
    assert "failed to log" not in caplog.text
    with mlflow.start_run() as other:
        assert train() == other.info.run_id
    deleted_run = train(resumed=False)
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_RUN_ID", first)
        assert train() == first
    mlflow.delete_run(deleted_run)
    assert train() != deleted_run
    assert f"MLflow has no run {deleted_run}" in caplog.text
