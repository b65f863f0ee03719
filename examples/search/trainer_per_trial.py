"""A study of optuna whose objective builds a Trainer for each trial:
`python examples/search/trainer_per_trial.py`.

`Trainer.hyperparameter_search` does this by itself. By hand, everything may depend on the trial.
"""

from __future__ import annotations

import tempfile

import optuna
import torch
from data import Model, points

from lightrainer import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class Report(TrainerCallback):
    """Tells the trial about each evaluation."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial = trial
        self.last = -1

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **kwargs: object,
    ) -> None:
        """After each evaluation."""
        if state.global_step > self.last:  # a number for each step
            self.last = state.global_step
            self.trial.report(metrics["eval_loss"], state.global_step)
        if self.trial.should_prune():
            raise optuna.TrialPruned


def objective(trial: optuna.Trial) -> float:
    """Return the loss on held-out data after one training."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            learning_rate=trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True),
            per_device_train_batch_size=trial.suggest_categorical("batch_size", [8, 16]),
            num_train_epochs=4,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            log_level="error",
        )
        model = Model(width=trial.suggest_int("width", 8, 32, step=8))
        trainer = Trainer(
            model,
            args,
            train_dataset=points(96, 1),
            eval_dataset=points(48, 2),
            callbacks=[Report(trial)],
        )
        trainer.train()
        return trainer.evaluate()["eval_loss"]


def main(n_trials: int = 8) -> optuna.Study:
    """Search, and print what was found."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=1),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2),
    )
    study.optimize(objective, n_trials=n_trials)
    pruned = sum(trial.state.name == "PRUNED" for trial in study.trials)
    print(
        f"best loss {study.best_value:.3f} with {study.best_params}; {pruned} of {n_trials} trials "
        "were pruned"
    )
    return study


if __name__ == "__main__":
    main()
