"""A script of a sweep that trains twice: what its evaluations are told to the study as."""

import json
from dataclasses import replace

import optuna
import pytest

from helpers.trainer.tiny_trainings import tiny, trained_trainer
from lightrainer.facade.arguments import sweep_trial
from lightrainer.facade.search import sweep_reports


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """A trial of a study in which the only other one was worse."""
    study = optuna.create_study(study_name="mine", storage=f"sqlite:///{tmp_path / 'study.db'}")
    study.add_trial(optuna.trial.create_trial(value=9.0, intermediate_values={2: 9.0, 4: 9.0}))
    monkeypatch.setattr(sweep_reports, "_trial_state", sweep_reports._TrialState())
    about = {
        "storage": f"sqlite:///{tmp_path / 'study.db'}",
        "study": "mine",
        "number": 1,
        "values": {},
    }
    about |= {
        "metrics": ["eval_loss"],
        "result": str(tmp_path / "result.json"),
        "run_name": "run-1",
    }
    study.ask()
    return sweep_trial.ChildTrial(**about, pruner="median:n_startup_trials=1"), study


def train_twice(folder, monkeypatch, trial):
    monkeypatch.setenv(sweep_trial.VARIABLE, trial.as_json())
    settings = {"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 100}
    losses = []
    for seed in (0, 1):
        trainer = trained_trainer(folder / "out", model=tiny(seed=seed), **settings)
        losses.append(
            [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
        )
    return losses


def test_several_trainings_report_with_their_numbers(tmp_path, monkeypatch, trial):
    about, _ = trial
    first, second = train_twice(tmp_path, monkeypatch, replace(about, pruner="none"))
    values = json.loads((tmp_path / "result.json").read_text())["values"]
    assert first != second
    assert [value[1:] for value in values] == [
        [[loss], n] for n, losses in ((1, first), (2, second)) for loss in losses
    ]


def test_pruner_does_not_mix_trainings(tmp_path, monkeypatch, trial):
    with pytest.raises(SystemExit, match="more than one training"):
        train_twice(tmp_path, monkeypatch, trial[0])
    assert "more than one training" in json.loads((tmp_path / "result.json").read_text())["refused"]
