"""Trackers whose client works offline, run for real: they write what the reference writes.

wandb and mlflow have separate test files.
"""

import csv
import os
import sys
from pathlib import Path

import pytest
import transformers

import lightrainer
from helpers import HELPERS
from helpers.loggers import tracker_files
from helpers.loggers.offline_clients import files_with_the_secret, needs, train_both
from helpers.loggers.reported_training import callback_of, make_trainer, points, without_times
from helpers.processes.starting import finished_ranks

# dvclive


@needs("dvclive")
def test_dvclive_has_the_files_of_the_reference(tmp_path):
    train_both(tmp_path, "dvclive", lambda made: made.evaluate())
    theirs, ours = (
        tracker_files.dvclive_metrics(tmp_path / name / "dvclive")
        for name in ("transformers", "lightrainer")
    )
    assert without_times(theirs) == without_times(ours)
    assert set(theirs) == set(ours) >= {"loss", "eval/loss", "train/loss", "learning_rate"}
    import yaml

    params = [
        yaml.safe_load((tmp_path / api / "dvclive/params.yaml").read_text())
        for api in ("transformers", "lightrainer")
    ]
    assert {name for name in params[0] if params[0][name] != params[1].get(name)} == {
        "output_dir",
        "accelerator_config",
    }
    assert files_with_the_secret(tmp_path) == []


@needs("dvclive")
@pytest.mark.parametrize("best", [False, True])
def test_dvclive_keeps_the_model(best, tmp_path, monkeypatch):
    from dvclive import Live

    artifacts = []
    monkeypatch.setattr(
        Live, "log_artifact", lambda self, path, **options: artifacts.append((path, options))
    )
    monkeypatch.setenv("HF_DVCLIVE_LOG_MODEL", "1")
    options = {"load_best_model_at_end": best, "save_strategy": "epoch"}
    trainer = make_trainer(lightrainer, tmp_path / "out", report_to="dvclive", **options)
    assert not lightrainer.callbacks.reads_checkpoints(callback_of(trainer, "DVCLiveCallback"))
    trainer.train()
    name = "best" if best else "last"
    assert artifacts == [
        (str(tmp_path / "out" / name), {"name": name, "type": "model", "copy": True})
    ]
    assert {"model.safetensors", "training_args.bin"} <= set(os.listdir(tmp_path / "out" / name))
    monkeypatch.setenv("HF_DVCLIVE_LOG_MODEL", "all")
    artifacts.clear()
    trainer = make_trainer(
        lightrainer, tmp_path / "out", report_to="dvclive", save_strategy="steps", save_steps=2
    )
    assert lightrainer.callbacks.reads_checkpoints(callback_of(trainer, "DVCLiveCallback"))
    trainer.train()
    assert artifacts == [(str(tmp_path / "out"), {})] * 2


# codecarbon


@needs("codecarbon")
def test_codecarbon_measures_every_training_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setenv("CODECARBON_COUNTRY_ISO_CODE", "FRA")
    monkeypatch.setenv("CODECARBON_ALLOW_MULTIPLE_RUNS", "True")
    trainer = make_trainer(lightrainer, tmp_path / "out", report_to="codecarbon")
    callback = callback_of(trainer, "CodeCarbonCallback")
    trainer.train()
    assert callback.tracker.final_emissions_data.duration > 0
    trainer.train()
    with (tmp_path / "out" / "emissions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["run_id"] for row in rows}) == 2
    assert all(
        float(row["energy_consumed"]) > 0 and row["country_iso_code"] == "FRA" for row in rows
    )


# trackio


@pytest.fixture(scope="module")
def trackio_folder(tmp_path_factory):
    """trackio looks for its folder when it is imported."""
    folder = tmp_path_factory.mktemp("trackio")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(folder))
        import trackio.utils
    if folder != trackio.utils.TRACKIO_DIR:
        pytest.skip("trackio was already imported and keeps its folder")
    return folder


@needs("trackio")
def test_trackio_logs_equal_the_reference_and_continue_after_training(
    trackio_folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("TRACKIO_DIR", str(trackio_folder))
    local = {"report_to": "trackio"}
    for api in (transformers, lightrainer):
        name = api.__name__
        trainer = make_trainer(api, tmp_path / name, project=name, run_name="named", **local)
        trainer.train()
    trainer.evaluate()
    trainer.predict(points(4))
    theirs, ours = (
        tracker_files.trackio_logs(trackio_folder, name) for name in ("transformers", "lightrainer")
    )
    *logs, evaluated, predicted = [(run, without_times(values)) for run, values in ours]
    assert logs == [(run, without_times(values)) for run, values in theirs]
    assert {run for run, _ in ours} == {"named"}
    assert ("eval/loss" in evaluated[1], "test/loss" in predicted[1]) == (True, True)
    import trackio.sqlite_storage

    config = trackio.sqlite_storage.SQLiteStorage.get_run_config("lightrainer", "named")
    assert (config["learning_rate"], config["width"], config["model/num_parameters"]) == (
        0.01,
        4,
        5,
    )
    assert files_with_the_secret(trackio_folder) == []


# swanlab


@needs("swanlab")
def test_swanlab_keeps_an_experiment_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    monkeypatch.setenv("SWANLAB_PROJECT", "mine")
    import swanlab

    trainer = make_trainer(lightrainer, tmp_path / "out", report_to="swanlab", run_name="named")
    trainer.train()
    trainer.evaluate()
    assert swanlab.config["learning_rate"] == 0.01
    assert swanlab.config["model_num_parameters"] == 5
    swanlab.finish()
    (written,) = tmp_path.glob("swanlog/*/*.swanlab")
    assert all(
        word in written.read_bytes()
        for word in (b"train/loss", b"eval/loss", b"single_value/train_loss", b"named")
    )
    assert files_with_the_secret(tmp_path) == []


# comet_ml


BESIDE = Path(sys.prefix) / "comet"
"""Where the Makefile installs it: transformers would import it in every process, if it were
among the packages.
"""


@pytest.mark.skipif(
    not BESIDE.is_dir(), reason="comet_ml is not installed in .venv/comet; run `make test`"
)
def test_comet_has_the_metrics_and_parameters_of_the_reference(tmp_path, monkeypatch):
    """In separate processes, as comet_ml patches other libraries when it is imported."""
    monkeypatch.setenv("COMET_START_ONLINE", "0")
    monkeypatch.setenv("COMET_DISABLE_AUTO_LOGGING", "1")
    script, options = (
        HELPERS / "loggers" / "comet_script.py",
        {
            "processes": 0,
            "library": "lightrainer",
        },
    )
    finished_ranks(
        script,
        str(tmp_path),
        log=tmp_path / "script.txt",
        seconds=240,
        **options,
        BESIDE=str(BESIDE),
    )
    experiments = []
    for api in ("transformers", "lightrainer"):
        (archive,) = (tmp_path / api).glob("*.zip")
        experiments.append(tracker_files.comet_experiment(archive))
    theirs, ours = experiments
    timeless = [
        [row for row in run["metrics"] if "runtime" not in row[0] and "per_second" not in row[0]]
        for run in experiments
    ]
    assert timeless[0] == timeless[1]
    assert {("train/loss", 1), ("train/loss", 4), ("eval/loss", 4), ("test/loss", 4)} <= {
        row[:2] for row in timeless[1]
    }
    different = {
        name for name, value in theirs["params"].items() if ours["params"].get(name) != value
    }
    assert {name for name in different if not name.startswith("args|accelerator_config")} == set()
    assert (ours["params"]["config|nested|depth"], ours["params"]["args|hub_token"]) == (
        2,
        "<HUB_TOKEN>",
    )
    assert "graph" in ours["kinds"]
