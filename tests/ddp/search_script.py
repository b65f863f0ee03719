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
import torch
from ranks import QUIET, Classifier, points

from lightrainer import Trainer, TrainingArguments
from lightrainer.lightning_modules import optimize_together

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


def trainer(folder, **changes):
    options = {"per_device_train_batch_size": 4, "num_train_epochs": 1, "learning_rate": 1e-2, "eval_strategy": "steps"}
    options |= {"eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "ddp_timeout": 60, **QUIET}
    arguments = TrainingArguments(str(folder), **options)
    data = {"train_dataset": points(24, 1), "eval_dataset": points(8, 2)}
    return Trainer(args=arguments, **{"model_init": model_of, **data, **changes})


class Fragile(Trainer):
    """Fails in the second trial, in process 1 only, when its training is over."""

    def train(self, *args, **kwargs):
        output = super().train(*args, **kwargs)
        if kwargs["trial"].number == 1 and RANK == 1:
            raise ArithmeticError("one process only")
        return output


def parameters(model):
    return [one.tolist() for one in model.parameters()]


def halves(folder):
    """Six trials, of which every second is pruned."""
    one = trainer(folder / "halves")
    steps = []
    sampler = optuna.samplers.RandomSampler(seed=3)
    report = one._report_to_hp_search

    def noted(trial, step, metrics):
        steps.append([trial.number, step])
        report(trial, step, metrics)

    one._report_to_hp_search = noted
    best = one.hyperparameter_search(space, n_trials=6, sampler=sampler, pruner=EverySecond(), remove_pruned=True)
    found = {"best": best, "steps": steps, "weights": parameters(one.model), "evaluated": one.evaluate()["eval_loss"]}
    if one.study is not None:
        trials = one.study.trials
        found["states"] = [trial.state.name for trial in trials]
        found["reports"] = [trial.intermediate_values for trial in trials]
        found["values"] = [trial.value for trial in trials]
        found["folders"] = sorted(path.name for path in (folder / "halves").glob("run-*"))
    return found


def stopped(folder):
    """The time is up after the first trial; then errors: caught ones, and one that ends the search in both."""
    one = trainer(folder / "late")
    best = one.hyperparameter_search(space, n_trials=50, timeout=0.01)
    fragile = Fragile(model_init=model_of, args=one.args, train_dataset=points(8, 1), eval_dataset=points(8, 2))
    sampler = optuna.samplers.RandomSampler(seed=3)
    caught = fragile.hyperparameter_search(second_is_best, n_trials=3, catch=ArithmeticError, sampler=sampler)
    held = parameters(fragile.model)
    states = None if fragile.study is None else [trial.state.name for trial in fragile.study.trials]
    error = error_of(fragile, n_trials=3)
    unreachable = error_of(trainer(folder / "nowhere"), n_trials=2, storage="sqlite:////nowhere/at/all.db")
    said = {"error": error, "unreachable": unreachable}
    return {"late": best, "caught": caught, "held": held, "states": states, **said}


def error_of(one, **options):
    try:
        one.hyperparameter_search(space, **options)
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"


def by_hand():
    """The function itself, around anything that all processes do."""

    def objective(trial):
        value = torch.tensor([trial.suggest_int("n", 1, 100) * (RANK + 1.0)])
        torch.distributed.all_reduce(value)
        trial.report(value.item(), 1)
        if trial.should_prune():
            raise optuna.TrialPruned
        return value.item()

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1)) if RANK == 0 else None
    return optimize_together(study, objective, n_trials=4, result=lambda study: [study.best_value, study.best_params])


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    seen = {"halves": halves(folder), "stopped": stopped(folder), "by_hand": by_hand()}
    (folder / f"rank{RANK}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
