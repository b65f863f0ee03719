"""What the tests of the search share."""

import optuna
from tiny import tiny, trainer

from lightrainer import PrinterCallback


def space(trial):
    return {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)}


def searcher(folder, **changes):
    """A Trainer with a model_init, 4 steps a training, an evaluation every second one."""
    settings = {"model_init": lambda: tiny(), "eval_strategy": "steps", "eval_steps": 2, "logging_steps": 100}
    made = trainer(folder, **{**settings, **changes})
    made.remove_callback(PrinterCallback)
    return made


def random_sampler(seed=0):
    return optuna.samplers.RandomSampler(seed=seed)


class Odd(optuna.pruners.BasePruner):
    """Prunes the trials with odd numbers at their first report."""

    def prune(self, study, trial):
        return trial.number % 2 == 1
