"""Small searches for the tests of this folder."""

import optuna

from helpers.processes.starting import forked_ranks
from helpers.trainer.tiny_trainings import make_trainer, tiny
from lightrainer import PrinterCallback


def space(trial):
    return {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)}


def searcher(folder, **changes):
    """A Trainer with a model_init, 4 steps a training, an evaluation every second one."""
    settings = {
        "model_init": lambda: tiny(),
        "eval_strategy": "steps",
        "eval_steps": 2,
        "logging_steps": 100,
    }
    trainer = make_trainer(folder, **{**settings, **changes})
    trainer.remove_callback(PrinterCallback)
    return trainer


def random_sampler(seed=0):
    return optuna.samplers.RandomSampler(seed=seed)


KILLED = """
import os, sys, optuna
from lightrainer.facade.search import retries
from lightrainer.facade.search.storages import open_storage
study = optuna.create_study(study_name="s", storage=open_storage(sys.argv[1]))
trial = study.ask()
trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)
retries.record_worker(study, trial)
os._exit(9)
"""


def goes_on_after_a_kill(folder, address):
    """The trial of a process that was killed is restarted, with its values."""
    (folder / "killed.py").write_text(KILLED)
    assert forked_ranks(
        folder / "killed.py", address, log=folder / "log", seconds=120, processes=0
    )[0] == [9]
    trainer = searcher(folder / "out")
    trainer.hyperparameter_search(
        space, n_trials=2, study_name="s", storage=address, load_if_exists=True
    )
    trials = trainer.study.trials
    assert [trial.state.name for trial in trials] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert trials[1].params == trials[0].params
    return trainer


class Odd(optuna.pruners.BasePruner):
    """Prunes the trials with odd numbers at their first report."""

    def prune(self, study, trial):
        return trial.number % 2 == 1
