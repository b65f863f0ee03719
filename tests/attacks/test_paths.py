"""Nothing that a checkpoint, a study or a name says makes a run write, delete or read outside of
its folders.
"""

import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

import lightrainer
from helpers.checkpoints.harmful_checkpoints import WARNINGS, lightning_trainer
from helpers.trainer.tiny_trainings import (
    At,
    files,
    make_trainer,
    points,
    tiny,
    with_trainer_in_callbacks,
)
from lightrainer.__main__ import main
from lightrainer.callbacks._files import trial_folder
from lightrainer.facade.checkpointing import training_state
from lightrainer.facade.search import retries
from lightrainer.lightning_modules import FolderCheckpointIO, LossModule, build_loader
from lightrainer.lightning_modules.checkpoints import folder_io, load_torch, save_torch
from lightrainer.lightning_modules.checkpoints.callback_paths import remove_foreign_paths
from lightrainer.lightning_modules.common.safe_serialization import from_plain, to_plain
from lightrainer.lightning_modules.internals import lightning_internals

pytestmark = [
    WARNINGS,
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    # It advises modules that optimize by hand.
    pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization"),
    # Lightning's own, where a path of the run before is of no use any more.
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]


@pytest.fixture
def victim(tmp_path) -> Path:
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "thesis.tex").write_text("ten years")
    return folder


# --- states of ModelCheckpoint


@pytest.fixture
def saving(tmp_path) -> ModelCheckpoint:
    callback = ModelCheckpoint(dirpath=tmp_path / "run" / "checkpoints", monitor="eval_loss")
    Path(str(callback.dirpath)).mkdir(parents=True)
    return callback


def state_of(saving: ModelCheckpoint, **paths: Any) -> dict[str, Any]:
    checkpoint = f"{saving.dirpath}/step=1.ckpt"
    defaults = {
        "best_k_models": {
            checkpoint: torch.tensor(1.0),
            f"{saving.dirpath}/step=2.ckpt": torch.tensor(2.0),
        },
        "best_model_path": checkpoint,
        "best_model_score": torch.tensor(1.0),
        "kth_best_model_path": f"{saving.dirpath}/step=2.ckpt",
        "kth_value": torch.tensor(2.0),
        "last_model_path": checkpoint,
        "dirpath": saving.dirpath,
    }
    return {**defaults, **paths}


def cleaned(saving: ModelCheckpoint, state: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
    return remove_foreign_paths({saving.state_key: state}, [saving], checkpoint)[saving.state_key]


OUTSIDE = {
    "elsewhere": "{victim}",
    "dots": "{run}/checkpoints/../../victim",
    "a link": "{run}/checkpoints/link",
    "in a link": "{run}/checkpoints/link/thesis.tex",
    "the folder itself": "{run}/checkpoints",
    "the folder above": "{run}",
    "a folder of a similar name": "{run}/checkpoints-of-mine/a",
    "relative": "victim",
    "a null": "{run}/checkpoints/a\0b",
    "a remote place": "s3://bucket/a",
    "a number": 7,
}


def path_of(way: str, tmp_path: Path) -> Any:
    (tmp_path / "run" / "checkpoints" / "link").symlink_to(tmp_path / "victim")
    written = OUTSIDE[way]
    return (
        written.format(victim=tmp_path / "victim", run=tmp_path / "run")
        if isinstance(written, str)
        else written
    )


@pytest.mark.parametrize("way", OUTSIDE)
def test_path_outside_of_the_run_is_dropped(saving, victim, tmp_path, caplog, way):
    path, state = path_of(way, tmp_path), state_of(saving)
    fields = dict.fromkeys(("best_model_path", "kth_best_model_path", "last_model_path"), path)
    models = {**state["best_k_models"], path: torch.tensor(9.0)}
    restored = cleaned(
        saving,
        {**state, **fields, "best_k_models": models},
        tmp_path / "downloads" / "checkpoint-2",
    )
    assert repr(path) in caplog.text
    saving.load_state_dict(restored)
    assert saving.best_k_models == {}
    assert saving.kth_best_model_path == saving.best_model_path == saving.last_model_path == ""


def test_trainer_state_of_this_run_is_unchanged(saving, tmp_path, caplog):
    state = state_of(saving)
    assert cleaned(saving, state, tmp_path / "run" / "checkpoint-2") is state
    assert not caplog.records


def test_best_checkpoint_of_an_earlier_run_is_read_but_not_deleted(saving, tmp_path):
    """A run resumed in another folder has its best model in the old one, beside the checkpoint."""
    before = str(tmp_path / "before" / "step=3.ckpt")
    state = state_of(saving, best_model_path=before, best_k_models={before: torch.tensor(0.5)})
    restored = cleaned(saving, state, tmp_path / "before" / "checkpoint-3")
    assert restored["best_model_path"] == before
    assert restored["best_k_models"] == {}


@pytest.mark.parametrize(
    ("path", "stays"),
    [
        ("s3://bucket/run/a.ckpt", True),
        ("s3://bucket/other", False),
        ("s3://bucket/run/../other", False),
    ],
)
def test_places_that_are_not_local(tmp_path, path, stays):
    saving = SimpleNamespace(state_key="k", dirpath="s3://bucket/run", mode="max")
    state = {"best_k_models": {path: 1.0}, "best_model_path": ""}
    cleaned_states = remove_foreign_paths({"k": state}, [saving], tmp_path)
    assert list(cleaned_states["k"]["best_k_models"]) == [path] * stays


class Metric(Callback):
    """Gives Lightning's callbacks something to watch, better with each step."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.callback_metrics["loss"] = torch.tensor(-float(trainer.global_step))


def saver(folder: Path) -> ModelCheckpoint:
    return ModelCheckpoint(dirpath=folder, monitor="loss", every_n_train_steps=1, save_top_k=1)


def accuse(states: dict[str, Any], folder: Path, victim: Path) -> None:
    """Let the state of the ModelCheckpoint say that the victim is the worst of its models."""
    state = next(state for key, state in states.items() if key.startswith("ModelCheckpoint"))
    path = os.path.join(os.path.realpath(folder), "..", "..", victim.name)
    state.update(
        best_k_models={path: torch.tensor(9.0)},
        kth_best_model_path=path,
        kth_value=torch.tensor(9.0),
    )
    state.update(dirpath=os.path.realpath(folder), best_model_path=path)


def lightning_fit(tmp_path: Path, victim: Path, *, with_plugin: bool) -> None:
    folder = tmp_path / "run" / "lightning"
    loader = build_loader(points(), batch_size=4)
    with lightning_internals.quiet():
        module = LossModule(tiny())
        watched = lambda: {"callbacks": [Metric(), saver(folder)], "enable_checkpointing": True}
        first = lightning_trainer(max_steps=2, plugins=[FolderCheckpointIO(module)], **watched())
        first.fit(module, loader)
        first.save_checkpoint(tmp_path / "run" / "checkpoint-2")
        (tmp_path / "run" / "checkpoint-2" / "_manifest.json").unlink()
        path = tmp_path / "run" / "checkpoint-2" / "lightning_state.pt"
        content = from_plain(load_torch(path))
        accuse(content["callbacks"], folder, victim)
        save_torch(to_plain(content), path)
        module = LossModule(tiny())
        plugins = [FolderCheckpointIO(module)] if with_plugin else []
        again = lightning_trainer(max_steps=4, max_epochs=9, plugins=plugins, **watched())
        again.fit(module, loader, ckpt_path=tmp_path / "run" / "checkpoint-2")
        assert again.global_step == 4


def facade_train(tmp_path: Path, victim: Path) -> None:
    out, folder = tmp_path / "run", tmp_path / "run" / "lightning"
    make_trainer(
        out, save_strategy="steps", save_steps=2, max_steps=2, callbacks=[Metric(), saver(folder)]
    ).train()
    checkpoint = out / "checkpoint-2"
    (checkpoint / "_manifest.json").unlink()
    path = checkpoint / "lightning_callbacks.pt"
    content = load_torch(path)
    states = {key: from_plain(state) for key, state in content["callbacks"].items()}
    accuse(states, folder, victim)
    save_torch(
        {**content, "callbacks": {key: to_plain(state) for key, state in states.items()}}, path
    )
    again = make_trainer(out, max_steps=4, callbacks=[Metric(), saver(folder)])
    again.train(resume_from_checkpoint=str(checkpoint))
    assert again.state.global_step == 4


DELETING = {
    "lightning.Trainer with the plugin": lambda *given: lightning_fit(*given, with_plugin=True),
    "lightning.Trainer": lambda *given: lightning_fit(*given, with_plugin=False),
    "train": facade_train,
}


@pytest.mark.parametrize("door", DELETING)
@pytest.mark.parametrize("guarded", [True, False])
def test_checkpoint_cannot_name_a_folder_to_delete(
    tmp_path, victim, monkeypatch, caplog, door, guarded
):
    """Without the guard, the negative control, it is."""
    if not guarded:
        for module in (folder_io, training_state):
            monkeypatch.setattr(module, "remove_foreign_paths", lambda states, *_: dict(states))
    DELETING[door](tmp_path, victim)
    assert victim.exists() == guarded
    assert ("paths outside of this run" in caplog.text) == guarded


# --- trainer_state.json


def resumed(tmp_path: Path, entries: dict[str, Any], callbacks: Any = (), **changes: Any) -> Any:
    """A trainer resumed from a checkpoint whose trainer_state.json has these entries."""
    make_trainer(tmp_path / "out", save_strategy="steps", save_steps=2).train()
    path = tmp_path / "out" / "checkpoint-2" / "trainer_state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))
    (path.parent / "_manifest.json").unlink()
    trainer = with_trainer_in_callbacks(
        make_trainer(tmp_path / "out", callbacks=list(callbacks), **changes)
    )
    trainer.train(resume_from_checkpoint=str(path.parent))
    return trainer


def test_trainer_state_cannot_turn_a_run_into_a_trial(tmp_path):
    """Reports and logs of a trial have a folder of its name."""
    entries = {"is_hyper_param_search": True, "trial_name": "../x", "trial_params": {"a": 1}}
    resumed(tmp_path, entries, [lightrainer.RunReportCallback()])
    assert (tmp_path / "out" / "report.html").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_file_name_cannot_leave_its_folder(tmp_path):
    for name in ("../x", "..", ".", "/x", "a/b", "a\\b", "..\\x", "", " ", "a\0b", 7, None, ["a"]):
        state = SimpleNamespace(is_hyper_param_search=True, trial_name=name)
        assert trial_folder(tmp_path, state) == str(tmp_path), name
    for name in ("run-0", "lm_lr0.001_s7", "a b", "...", "ä", "lr:0.1", "-x"):
        state = SimpleNamespace(is_hyper_param_search=True, trial_name=name)
        assert trial_folder(tmp_path, state) == str(tmp_path / name), name


@pytest.mark.parametrize("elsewhere", ["{victim}", "{out}/../victim", "{out}", 7, "{out}/link"])
def test_best_checkpoint_outside_of_the_run_is_refused(tmp_path, victim, caplog, elsewhere):
    """It is read at the end, and with `save_total_limit=1` all others are deleted."""
    best = (
        elsewhere.format(victim=victim, out=tmp_path / "out")
        if isinstance(elsewhere, str)
        else elsewhere
    )
    read = []
    entries = {"best_model_checkpoint": best, "best_metric": -1.0, "best_global_step": 1}
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "link").symlink_to(victim)
    reading = At("on_step_end", lambda of, state, control: read.append(state.best_model_checkpoint))
    options = {
        "load_best_model_at_end": True,
        "save_total_limit": 1,
        "metric_for_best_model": "loss",
    }
    options |= {
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "eval_steps": 1,
        "save_steps": 1,
    }
    resumed(tmp_path, entries, [reading], **options)
    assert best not in read
    assert "ignoring it" in caplog.text
    assert (victim / "thesis.tex").read_text() == "ten years"
    assert any(path.name.startswith("checkpoint-") for path in (tmp_path / "out").iterdir())


def test_best_checkpoint_of_a_moved_run_is_found(tmp_path, caplog):
    trainer = resumed(
        tmp_path, {"best_model_checkpoint": "/gone/out/checkpoint-2", "best_metric": 0.1}
    )
    assert trainer.state.best_model_checkpoint == str(tmp_path / "out" / "checkpoint-2")
    assert "the run has been moved" in caplog.text


@pytest.mark.parametrize("best", ["{tmp}/out/checkpoint-2", "{tmp}/out/checkpoint-77"])
def test_best_checkpoint_of_this_run_is_kept(tmp_path, best, caplog):
    """Be it there or not: it may have been deleted in favour of others."""
    path = best.format(tmp=tmp_path)
    assert resumed(tmp_path, {"best_model_checkpoint": path}).state.best_model_checkpoint == path
    assert "ignoring" not in caplog.text


# --- sweeps and studies


@pytest.mark.parametrize("name", ["../../x", "."])
def test_study_name_cannot_leave_the_sweeps_folder(tmp_path, monkeypatch, capsys, name):
    (tmp_path / "here" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / "deep")
    Path("script.py").write_text("")
    Path("space.yaml").write_text("learning_rate: {low: 1e-3, high: 1e-1}")
    before = files(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "script.py", "--space", "space.yaml", "--study-name", name])
    assert ended.value.code == 2
    assert f"--study-name {name!r} cannot be the name of a folder" in capsys.readouterr().err
    assert files(tmp_path) == before


@pytest.mark.parametrize("origin", ["../../x", "x/../../y", [1], None, True])
def test_study_cannot_name_the_folder_of_a_trial(origin):
    """Writers of its storage can name the trial that another one retries."""
    logging.getLogger("optuna").setLevel(logging.WARNING)
    study = optuna.create_study()
    study.enqueue_trial({})
    trial = study.ask()
    study._storage.set_trial_system_attr(trial._trial_id, "failed_trial", origin)
    assert retries.origin_of(study, trial) == 0
    study._storage.set_trial_system_attr(trial._trial_id, "failed_trial", 5)
    assert retries.origin_of(study, trial) == 5
