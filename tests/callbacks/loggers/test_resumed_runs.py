"""A resumed training continues the tracker's run of its checkpoint, unless the script or the
environment names one.
"""

import importlib
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

import lightrainer
from helpers.loggers import recorded_clients
from helpers.loggers.offline_clients import needs
from helpers.loggers.reported_training import callback_of, make_trainer
from lightrainer.callbacks.loggers import availability
from lightrainer.lightning_modules.common.versions import is_older

SAVED = {"save_strategy": "steps", "save_steps": 2}


def train(folder, report_to, name, resumed=False, then=lambda: None, **changes):
    """Train in four steps, or the last two of them; returns the callback, as another process
    would have it.
    """
    trainer = make_trainer(lightrainer, folder / "out", report_to=report_to, **{**SAVED, **changes})
    trainer.train(resume_from_checkpoint=str(folder / "out" / "checkpoint-2") if resumed else None)
    callback = callback_of(trainer, name)
    run_id = callback.run_id
    then()
    return run_id


@needs("wandb")
def test_wandb_run_is_resumed(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    arguments = tmp_path, "wandb", "WandbCallback"
    first = train(*arguments, then=wandb.finish)
    assert train(*arguments, resumed=True, then=wandb.finish) == first
    assert train(*arguments, then=wandb.finish) != first
    runs = Path(wandb.setup().settings.wandb_dir)  # that of the first run in this process
    assert len([path for path in runs.glob("offline-run-*") if first in path.name]) == 2
    run_ids = []
    monkeypatch.setattr(
        wandb,
        "init",
        lambda init=wandb.init, **options: run_ids.append(options.get("id")) or init(**options),
    )
    monkeypatch.setenv("WANDB_RUN_ID", "mine")  # read by wandb itself
    train(*arguments, resumed=True, then=wandb.finish)
    assert run_ids == [None]


@needs("tensorboard")
@pytest.mark.parametrize("asked", [False, True])
def test_tensorboard_run_is_resumed(tmp_path, asked, monkeypatch):
    """The folder of the run, in which what came after the checkpoint is taken back."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.summary.writer import event_file_writer

    # files are read in the order of their names, which are in seconds
    seconds = itertools.count(1_800_000_000)
    monkeypatch.setattr(event_file_writer, "time", SimpleNamespace(time=lambda: next(seconds)))
    changes = {"logging_dir": str(tmp_path / "asked")} if asked else {}
    arguments = tmp_path, "tensorboard", "TensorBoardCallback"
    first = train(*arguments, **changes)
    assert train(*arguments, resumed=True, **changes) == first
    (folder,) = [tmp_path / "asked"] if asked else (tmp_path / "out" / "runs").iterdir()
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4]


def test_run_folder_belongs_to_this_training(tmp_path):
    """A checkpoint cannot send logs elsewhere, and a moved training writes where it is now."""
    from lightrainer.callbacks.loggers.tensorboard import TensorBoardCallback

    trainer = make_trainer(lightrainer, tmp_path / "out", [TensorBoardCallback()])
    callback_of(trainer, "TensorBoardCallback").load_state_dict(
        {"run": str(tmp_path / "elsewhere")}
    )
    trainer.train()
    assert [path.name for path in (tmp_path / "out" / "runs").iterdir()] == ["elsewhere"]


@needs("swanlab")
def test_swanlab_run_is_resumed(tmp_path, monkeypatch):
    swanlab = importlib.import_module("swanlab")
    if is_older(swanlab.__version__, "0.8"):
        pytest.skip("this swanlab version only assigns ids to uploaded runs")
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    arguments = tmp_path, "swanlab", "SwanLabCallback"
    first = train(*arguments, then=swanlab.finish)
    assert first is not None
    assert train(*arguments, resumed=True, then=swanlab.finish) == first
    monkeypatch.setenv("SWANLAB_RUN_ID", "a" * 21)
    assert train(*arguments, resumed=True, then=swanlab.finish) == "a" * 21


@pytest.mark.parametrize("named", [False, True])
def test_trackio_run_is_resumed(tmp_path, monkeypatch, named):
    """Its name is the run; a `run_name` of the script goes before."""
    record = recorded_clients.trackio(monkeypatch)
    monkeypatch.setitem(availability.AVAILABLE, "trackio", lambda: True)
    changes = {"run_name": "mine"} if named else {}
    first = train(tmp_path, "trackio", "TrackioCallback")
    train(tmp_path, "trackio", "TrackioCallback", resumed=True, **changes)
    names = [options["name"] for name, _, options in record.calls if name == "init"]
    assert first is not None
    assert names == [None, "mine" if named else first]


@pytest.mark.parametrize("key", [None, "mine"])
def test_comet_run_is_resumed(tmp_path, monkeypatch, key):
    record = recorded_clients.comet_ml(monkeypatch)
    monkeypatch.setitem(availability.AVAILABLE, "comet_ml", lambda: True)
    train(tmp_path, "comet_ml", "CometCallback")
    if key is not None:
        monkeypatch.setenv("COMET_EXPERIMENT_KEY", key)
    train(tmp_path, "comet_ml", "CometCallback", resumed=True)
    starts = [options.get("experiment_key") for name, _, options in record.calls if name == "start"]
    assert starts == [None, "the-key" if key is None else None]
