"""Scripts with their own loop over the trials of a study hand each to `train(trial=...)`, as the
reference allows.
"""

import math

import optuna
import pytest

from helpers.trainer.tiny_trainings import make_trainer
from lightrainer import HPSearchBackend


@pytest.mark.parametrize("prunes", [False, True])
def test_train_applies_the_values_of_a_trial_and_reports_to_it(tmp_path, prunes):
    trainer = make_trainer(
        tmp_path, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2
    )
    trainer.hp_search_backend = HPSearchBackend.OPTUNA
    trainer.hp_space = lambda trial: {
        "learning_rate": trial.suggest_float("learning_rate", 0.125, 0.125)
    }
    threshold = -1.0 if prunes else math.inf
    study = optuna.create_study(
        pruner=optuna.pruners.ThresholdPruner(upper=threshold, n_warmup_steps=0)
    )

    def objective(trial):
        trainer.train(trial=trial)
        return trainer.objective

    study.optimize(objective, n_trials=1)
    (trial,) = study.trials
    assert trainer.args.learning_rate == 0.125
    assert trial.state is (
        optuna.trial.TrialState.PRUNED if prunes else optuna.trial.TrialState.COMPLETE
    )
    assert list(trial.intermediate_values) == ([2] if prunes else [2, 4])
    assert [path.name for path in tmp_path.glob("**/run-*")] == ["run-0"]


class OwnTrial:
    number = 3

    def __init__(self):
        self.params = {"learning_rate": 0.125}


@pytest.mark.parametrize("trial", [{"learning_rate": 0.125}, OwnTrial()], ids=["dict", "object"])
def test_train_with_a_trial_that_takes_no_reports(tmp_path, trial):
    trainer = make_trainer(tmp_path, eval_strategy="steps", eval_steps=2)
    trainer.hp_search_backend = HPSearchBackend.OPTUNA
    trainer.hp_space = lambda trial: {"learning_rate": 0.125}
    trainer.train(trial=trial)
    assert trainer.args.learning_rate == 0.125
    assert math.isfinite(trainer.objective)
