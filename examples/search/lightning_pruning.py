"""A study with our LightningModule in a plain `lightning.Trainer`:
`python examples/search/lightning_pruning.py`.

In two processes, `torchrun --nproc_per_node=2 examples/search/lightning_pruning.py`, each trial is
trained by both: one study, the same values, and a trial that is pruned ends in both.
"""

from __future__ import annotations

import os
from typing import Any

import lightning
import optuna
import torch
import torch.distributed as dist
from data import Model, points
from torch.utils.data import DataLoader

from lightrainer import LossModule, OptimizerConfig, OptunaPruningCallback
from lightrainer.lightning_modules import optimize_together

PROCESSES = int(os.environ.get("WORLD_SIZE", 1))


def objective(trial: Any) -> float:
    """Return the loss on held-out data after one training."""
    torch.manual_seed(0)
    rate = trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)
    module = LossModule(
        Model(trial.suggest_int("width", 8, 32, step=8)),
        optimizer=OptimizerConfig(learning_rate=rate),
    )
    trainer = lightning.Trainer(
        max_epochs=4,
        accelerator="cpu",
        devices=PROCESSES,
        strategy="ddp" if PROCESSES > 1 else "auto",
        callbacks=[OptunaPruningCallback(trial, monitor="val_loss")],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train, held_out = (
        DataLoader(points(96, 1), batch_size=8),
        DataLoader(points(48, 2), batch_size=16),
    )
    trainer.fit(module, train, held_out)
    return trainer.callback_metrics["val_loss"].item()


def main(n_trials: int = 8) -> dict[str, Any]:
    """Search, and print what was found; each process gets it."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if PROCESSES > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")
    study = None
    if PROCESSES == 1 or dist.get_rank() == 0:
        pruner = optuna.pruners.MedianPruner(n_startup_trials=2)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1), pruner=pruner)
    best = optimize_together(study, objective, n_trials=n_trials, result=summary)
    if study is not None:
        print(best)
    return best


def summary(study: optuna.Study) -> dict[str, Any]:
    """Sum up the search, for all processes."""
    states = [trial.state.name for trial in study.trials]
    return {
        "best": study.best_value,
        "parameters": study.best_params,
        "pruned": states.count("PRUNED"),
    }


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
