"""Checks of a Trainer's data and model at the beginning of a training, or of a search."""

from __future__ import annotations

from typing import Any

from ...lightning_modules.data.lengths import has_length
from .overrides import is_own


def require_training_data(trainer: Any) -> None:
    """Refuse a training without data."""
    if not is_own(trainer, "get_train_dataloader"):
        return
    dataset = trainer.train_dataset
    if dataset is None:
        raise ValueError("train() needs data: pass train_dataset=... to the Trainer.")
    if isinstance(dataset, dict):
        raise TypeError(
            f"train_dataset is a dict ({', '.join(map(str, dataset))}), but training takes one dataset: pass the one "
            "to train on, or override get_train_dataloader."
        )
    if has_length(dataset) and len(dataset) == 0:
        raise ValueError("train_dataset is empty: it has length 0, so there is nothing to train on.")


def require_new_models(trainer: Any) -> None:
    """Refuse a search that cannot create a new model for each trial."""
    if trainer.model_init is None:
        raise RuntimeError(
            "hyperparameter_search needs a new model for each trial: pass model_init=... (a function that makes "
            "one) to the Trainer, instead of model=..."
        )
    if trainer.optimizer is not None and not trainer._created_lr_scheduler and not trainer._prepared:
        raise RuntimeError(
            "hyperparameter_search cannot go with an optimizer that was set on the Trainer: it holds the "
            "parameters of another model. Override create_optimizer_and_scheduler, or pass "
            "optimizer_cls_and_kwargs."
        )


def require_evaluation_data(trainer: Any) -> None:
    """Refuse a choice of the best model without data to evaluate on."""
    package, args = __name__.rpartition(".")[0], trainer.args
    steps = (trainer.evaluate, trainer.get_eval_dataloader)
    own = all(getattr(step, "__module__", "").startswith(package) for step in steps)
    judged = args.load_best_model_at_end or args.save_strategy == "best"
    if not own or not judged or args.eval_strategy == "no":
        return
    given = trainer.eval_dataset
    found = list(given.values()) if isinstance(given, dict) else [given]
    if given is not None and all(has_length(one) and len(one) == 0 for one in found):
        raise ValueError(
            f"eval_dataset is empty ({given!r:.40}), so that no evaluation has "
            f"metric_for_best_model={args.metric_for_best_model!r}. Pass data to evaluate on, or set "
            "load_best_model_at_end=False and another save_strategy than 'best'."
        )
