"""Reports from a plain `lightning.Trainer` to the sweep that its script is a trial of."""

from __future__ import annotations

from typing import Any, NoReturn, cast

from ...lightning_modules.internals.lightning_import import Callback, Trainer
from ..arguments.sweep_trial import ChildTrial, this_trial
from . import child


def callbacks() -> list[Any]:
    """Return the callbacks of a plain Trainer in a sweep.

    Where the sweep asks for the objective only, `fit` answers and ends the script, so that nothing is written.
    """
    trial = this_trial()
    if trial is None:
        return []
    if trial.asks:
        Trainer.fit = cast(Any, lambda trainer, *args, **kwargs: _answer(trial, trainer))
    return [SweepReports(trial)]


def _answer(trial: ChildTrial, trainer: Trainer) -> NoReturn:
    watching: list[Any] = [one for one in trainer.checkpoint_callbacks if getattr(one, "monitor", None)]
    for one in [*watching, *trainer.early_stopping_callbacks]:
        why = f"The script has {type(one).__name__}(monitor={one.monitor!r}, mode={one.mode!r})."
        trial.answer(one.monitor, one.mode == "max", why)
    trial.answer("val_loss", False, "No ModelCheckpoint or EarlyStopping of the script has a monitor.")


class SweepReports(Callback):
    """Reports logged metrics after each validation, and ends the script if its trial is pruned.

    Raises:
        ValueError: the sweep has values for training arguments, which the script never makes.
    """

    def __init__(self, trial: ChildTrial) -> None:
        self.trial = trial

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse values that have not reached the script."""
        if self.trial.values and not self.trial.applied:
            raise ValueError(
                f"The sweep has values for the training arguments {', '.join(self.trial.values)}, and this script "
                "makes none. Pass --values-as options, or another way in which it takes them."
            )

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Number this training."""
        child.count_training()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report."""
        if trainer.sanity_checking:
            return
        trial, fits = self.trial, trainer.state.fn == "fit"
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        epochs = trainer.current_epoch + (fits and trainer.is_last_batch)
        place = trainer.global_step if trial.unit == "steps" else epochs or None
        folder = trainer.log_dir or trainer.default_root_dir  # asked of all processes
        if trainer.is_global_zero:
            child.keep(trial, metrics, place, folder)

        def share(ask: Any) -> bool:
            return trainer.strategy.broadcast(trainer.is_global_zero and ask())

        if fits and child.is_hopeless(trial, metrics, place, share):
            raise child.PrunedBySweep(0)
