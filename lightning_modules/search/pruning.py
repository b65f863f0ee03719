"""Pruning of optuna's trials in a plain `lightning.Trainer`."""

from __future__ import annotations

import math
from typing import Any, Literal

from ..common.suggestions import did_you_mean
from ..internals.lightning_import import Callback
from .channel import SharedTrial

__all__ = ["OptunaPruningCallback"]

_UNITS = ("steps", "epochs")


class OptunaPruningCallback(Callback):
    """As `optuna.integration.PyTorchLightningPruningCallback`, but under DDP all processes stop together.

        def objective(trial):
            config = OptimizerConfig(learning_rate=trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True))
            trainer = lightning.Trainer(callbacks=[OptunaPruningCallback(trial, "val_loss")])
            trainer.fit(LossModule(model, optimizer=config), loader, held_out)
            return trainer.callback_metrics["val_loss"].item()

    After each validation the monitored value is reported to the trial, under the number of optimizer steps taken so
    far, or after the first one of each epoch under the number of that. Where the study's pruner says so, the training
    ends with `optuna.TrialPruned`, in every process: what the first one is told counts.

    Args:
        trial: the trial; only that of the first process is asked, so the others may have None.
        monitor: the name of the logged value.
        unit: what it is reported under, `steps` or `epochs`; steps of different batch sizes cannot be compared.

    Raises:
        optuna.TrialPruned: the trial is not worth to go on with.
        ValueError: no value of that name was logged; names those that there are. Also, on construction, for a unit that
            is not known.
    """

    def __init__(self, trial: Any, monitor: str = "val_loss", *, unit: Literal["steps", "epochs"] = "steps") -> None:
        super().__init__()
        if unit not in _UNITS:
            raise ValueError(
                f"unit={unit!r} is not known.{did_you_mean(unit, _UNITS)} Choose from: {', '.join(_UNITS)}."
            )
        self.unit = unit
        self.monitor = monitor
        # One that is shared by processes asks all of them; here, that is left to Lightning.
        self._trial = trial._trial if isinstance(trial, SharedTrial) else trial
        self._reported = -1

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report, and end the training if it is to be pruned."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        value = trainer.callback_metrics.get(self.monitor)
        if value is None:
            known = list(map(str, trainer.callback_metrics))
            raise ValueError(
                f"monitor={self.monitor!r}: no such value was logged. There are: {', '.join(known) or 'none'}."
                f"{did_you_mean(self.monitor, known)} Log it in validation_step: self.log({self.monitor!r}, ...)."
            )
        if trainer.strategy.broadcast(self._is_hopeless(trainer, float(value)), src=0):
            import optuna

            raise optuna.TrialPruned(f"Pruned at step {trainer.global_step}, {self.monitor}={float(value):.6g}.")

    def _is_hopeless(self, trainer: Any, value: float) -> bool:
        if not trainer.is_global_zero or self._trial is None:
            return False
        # A validation at the end of an epoch may be at the step of the one before it.
        place = trainer.global_step if self.unit == "steps" else trainer.current_epoch
        if place > self._reported:
            self._reported = place
            self._trial.report(value if math.isfinite(value) else float("nan"), place)
        return bool(self._trial.should_prune())
