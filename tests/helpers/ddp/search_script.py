"""Searches in two processes, for `torchrun`.

    torchrun --nproc_per_node=2 search_script.py OUTPUT_FOLDER

Every rank writes what it saw to `OUTPUT_FOLDER/rank<rank>.json`.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import optuna

from helpers.processes.rank_training import QUIET, Classifier, points
from lightrainer import Trainer, TrainingArguments

RANK = int(os.environ["RANK"])


class EverySecond(optuna.pruners.BasePruner):
    """Prunes the trials with odd numbers at their second report."""

    def prune(self, study, trial):
        return trial.number % 2 == 1 and len(trial.intermediate_values) == 2


def space(trial):
    return {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)}


def second_is_best(trial):
    """The others hardly learn."""
    low = 5e-2 if trial.number == 1 else 1e-6
    return {"learning_rate": trial.suggest_float("learning_rate", low, 2 * low)}


def model_of(trial):
    """The width is drawn while the model is made, in both processes."""
    width = 6 if trial is None else trial.suggest_categorical("width", [4, 8])
    return Classifier(width)


def make_trainer(folder, cls=Trainer):
    options = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 1,
        "learning_rate": 1e-2,
        "eval_strategy": "steps",
    }
    options |= {
        "eval_steps": 1,
        "save_strategy": "steps",
        "save_steps": 1,
        "ddp_timeout": 60,
        **QUIET,
    }
    arguments = TrainingArguments(str(folder), **options)
    data = {"train_dataset": points(24, 1), "eval_dataset": points(8, 2)}
    return cls(model_init=model_of, args=arguments, **data)


class Fragile(Trainer):
    """Fails in the second trial, in process 1 only, when its training is over."""

    def train(self, *args, **kwargs):
        output = super().train(*args, **kwargs)
        if kwargs["trial"].number == 1 and RANK == 1:
            raise ArithmeticError("one process only")
        return output


def parameters(model):
    return [parameter.tolist() for parameter in model.parameters()]


def halves(folder):
    """Six trials, of which every second is pruned."""
    trainer = make_trainer(folder / "halves")
    steps = []
    sampler = optuna.samplers.RandomSampler(seed=3)
    report = trainer._report_to_hp_search

    def noted(trial, step, metrics):
        steps.append([trial.number, step])
        report(trial, step, metrics)

    trainer._report_to_hp_search = noted
    best = trainer.hyperparameter_search(space, n_trials=6, sampler=sampler, pruner=EverySecond())
    record = {
        "best": best,
        "steps": steps,
        "weights": parameters(trainer.model),
        "evaluated": trainer.evaluate()["eval_loss"],
    }
    if trainer.study is not None:
        trials = trainer.study.trials
        record["states"] = [trial.state.name for trial in trials]
        record["reports"] = [trial.intermediate_values for trial in trials]
        record["values"] = [trial.value for trial in trials]
    return record


def stopped(folder):
    """The time is up after the first trial; then errors: caught ones, and one that ends the
    search in both processes.
    """
    trainer = make_trainer(folder / "late")
    best = trainer.hyperparameter_search(space, n_trials=50, timeout=0.01)
    fragile = make_trainer(folder / "fragile", cls=Fragile)
    sampler = optuna.samplers.RandomSampler(seed=3)
    caught = fragile.hyperparameter_search(
        second_is_best, n_trials=3, catch=ArithmeticError, sampler=sampler
    )
    record = {"late": best, "caught": caught, "held": parameters(fragile.model)}
    if fragile.study is not None:
        record["states"] = [trial.state.name for trial in fragile.study.trials]
    try:
        fragile.hyperparameter_search(space, n_trials=3)
    except Exception as raised:
        return {**record, "error": f"{type(raised).__name__}: {raised}"}


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    record = {"halves": halves(folder), "stopped": stopped(folder)}
    (folder / f"rank{RANK}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
