"""Which model the Trainer holds when a search is over."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from ...callbacks import TrainerState
from ...lightning_modules.checkpoints import last_intact_checkpoint
from ..arguments.enums import HPSearchBackend
from ..compat.hyperparameters import BestRun
from .kept import install
from .naming import checked_name
from .search import Search

logger = logging.getLogger(__name__)


def settle_model(search: Search, found: BestRun | list[BestRun]) -> None:
    """Do what `final_model` asks for, and say what the Trainer holds.

    Args:
        search: the search, whose arguments the Trainer has again.
        found: what came out of it.
    """
    wanted = search.options.final_model
    if wanted == "last":
        return
    if isinstance(found, list):
        logger.warning(
            "There are %s best runs, as there are several objectives. The Trainer holds the model of the last trial: "
            "set the hyperparameters of the run that you choose on trainer.args, and train().",
            len(found),
        )
        return
    if wanted == "retrain":
        _retrain(search, trial_of(found, search))
    elif not search.best.hand_over(search.trainer, found.run_id) and not _read(search, found):
        logger.warning(
            "The best run, trial %s, was not trained by this process and has no checkpoint here, so the Trainer holds "
            "another model. To get it, pass final_model='retrain', or set these on trainer.args and train(): %s",
            found.run_id,
            found.hyperparameters,
        )


def trial_of(found: BestRun, search: Search) -> Any:
    """A trial that gives the values of a run again, whoever asks for them."""
    if search.trainer.hp_search_backend == HPSearchBackend.RAY:
        return dict(found.hyperparameters)
    from optuna.trial import FixedTrial

    return FixedTrial(found.hyperparameters, number=int(found.run_id))


def _retrain(search: Search, trial: Any) -> None:
    """One more training, with the values of the best run, in the folder `best`."""
    search.folder, search.is_over = "best", True
    try:
        search.trainer.train(trial=trial)
    finally:
        search.folder = None
        search.given.restore()


def _read(search: Search, found: BestRun) -> bool:
    """The model of another process, from the checkpoint that it left; not one that an older search has left there."""
    trainer, trial = search.trainer, trial_of(found, search)
    if isinstance(trial, dict):
        search.folder = ray_folder(trainer, found.run_id, trial)
    folder = search.run_dir(trial)
    newest = last_intact_checkpoint(folder) if folder.is_dir() else None
    if newest is None:
        return False
    state = TrainerState.load_from_json(Path(newest) / "trainer_state.json")
    if state.trial_params is None or any(found.hyperparameters.get(k) != v for k, v in state.trial_params.items()):
        return False
    chosen = state.best_model_checkpoint if trainer.args.load_best_model_at_end else None
    chosen = chosen if chosen is not None and Path(chosen).is_dir() else newest
    install(trainer, trainer.call_model_init(trial))
    trainer._load_from_checkpoint(chosen)
    trainer.state = state
    logger.info("The Trainer holds the model of %s.", chosen)
    return True


def ray_folder(trainer: Any, run_id: str, values: dict[str, Any]) -> str:
    """The name of the folder of a trial of Ray, as in the reference."""
    return f"run-{run_id}" if trainer.hp_name is None else checked_name(trainer.hp_name(values))
