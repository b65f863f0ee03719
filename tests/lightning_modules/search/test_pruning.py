"""Pruning in a plain Lightning Trainer, and the study of one process."""

import optuna
import pytest
from torch.utils.data import DataLoader

from helpers.lightning.tiny_modules import Net, make_trainer, points, seeded
from lightrainer import LossModule, OptimizerConfig, OptunaPruningCallback
from lightrainer.lightning_modules import optimize_together


class Second(optuna.pruners.BasePruner):
    """Prunes at the second report."""

    def prune(self, study, trial):
        return len(trial.intermediate_values) == 2


@pytest.fixture(autouse=True)
def _quiet():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


def fit(trial, monitor="val_loss"):
    pruning, loader = OptunaPruningCallback(trial, monitor), DataLoader(points(12), batch_size=4)
    trainer = make_trainer(max_epochs=4, callbacks=[pruning], num_sanity_val_steps=2)
    trainer.fit(
        LossModule(seeded(Net), optimizer=OptimizerConfig(learning_rate=0.1)), loader, loader
    )
    return trainer.callback_metrics["val_loss"].item()


def test_values_are_reported_under_the_optimizer_step():
    study = optuna.create_study()
    study.optimize(fit, n_trials=1)
    (trial,) = study.trials
    # the look before the training does not count
    assert list(trial.intermediate_values) == [3, 6, 9, 12]
    assert trial.value == trial.intermediate_values[12]


def test_pruning_ends_the_trial():
    study = optuna.create_study(pruner=Second())
    study.optimize(fit, n_trials=1)
    (trial,) = study.trials
    assert trial.state.name == "PRUNED"
    assert list(trial.intermediate_values) == [3, 6]


def test_pruning_of_a_value_that_was_not_logged():
    study = optuna.create_study()
    with pytest.raises(ValueError, match=r"monitor='vall_loss'.*'val_loss'"):
        study.optimize(lambda trial: fit(trial, "vall_loss"), n_trials=1)


def test_pruning_in_one_process_uses_the_study():
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    best = optimize_together(
        study,
        lambda trial: trial.suggest_float("x", 0, 1),
        n_trials=3,
        result=lambda study: study.best_params["x"],
    )
    assert best == min(trial.value for trial in study.trials)
    assert len(study.trials) == 3
    with pytest.raises(ZeroDivisionError):
        optimize_together(study, lambda trial: 1 / 0, n_trials=3)
    optimize_together(study, lambda trial: 1 / 0, n_trials=3, catch=ZeroDivisionError)
    assert [trial.state.name for trial in study.trials[3:]] == ["FAIL"] * 4
