"""The same study with both libraries: the same values of the trials, bit for bit, and so the
same best run.
"""

import optuna
import pytest

from helpers.parity.harness import DEFAULTS
from helpers.parity.parity_datasets import points
from helpers.parity.parity_models import Classifier


@pytest.fixture(autouse=True)
def _quiet():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


def space(trial):
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True),
        "per_device_train_batch_size": trial.suggest_categorical(
            "per_device_train_batch_size", [2, 4]
        ),
        "num_train_epochs": trial.suggest_int("num_train_epochs", 1, 2),
        "lr_scheduler_type": trial.suggest_categorical("lr_scheduler_type", ["linear", "cosine"]),
    }


def model(trial):
    return Classifier(dropout=0.2 if trial is None else trial.suggest_float("dropout", 0.0, 0.5))


def search(api, folder, **changes):
    settings = {**DEFAULTS, "eval_strategy": "steps", "eval_steps": 3, "disable_tqdm": False}
    arguments = api.TrainingArguments(output_dir=str(folder), **settings)
    trainer = api.Trainer(
        model_init=model, args=arguments, train_dataset=points(16, 1), eval_dataset=points(6, 2)
    )
    for callback in list(trainer.callback_handler.callbacks):
        if "Progress" in type(callback).__name__:
            trainer.remove_callback(callback)
    options = {
        "n_trials": 8,
        "sampler": optuna.samplers.TPESampler(seed=3, n_startup_trials=4),
        "pruner": optuna.pruners.MedianPruner(n_startup_trials=2),
        **changes,
    }
    studies, make = [], optuna.create_study
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            optuna,
            "create_study",
            lambda **keywords: studies.append(make(**keywords)) or studies[0],
        )
        best = trainer.hyperparameter_search(space, **options)
    return best, studies[0].trials


def facts(trial):
    return trial.number, trial.state.name, trial.params, trial.values, trial.intermediate_values


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_search_with_the_same_sampler_equals_the_reference(reference, ours, tmp_path, direction):
    theirs, their_trials = search(reference, tmp_path / "reference", direction=direction)
    best, trials = search(ours, tmp_path / "ours", direction=direction)
    assert [facts(trial) for trial in trials] == [facts(trial) for trial in their_trials]
    assert tuple(best) == tuple(theirs)
    assert {trial.state.name for trial in trials} == {"COMPLETE", "PRUNED"}


def test_search_of_several_objectives_equals_the_reference(reference, ours, tmp_path):
    changes = {
        "n_trials": 4,
        "direction": ["minimize", "maximize"],
        "pruner": None,
        "compute_objective": lambda metrics: [metrics["eval_loss"], metrics["epoch"]],
    }
    theirs, _ = search(reference, tmp_path / "reference", **changes)
    best, _ = search(ours, tmp_path / "ours", **changes)
    assert [tuple(run) for run in best] == [tuple(run) for run in theirs]
