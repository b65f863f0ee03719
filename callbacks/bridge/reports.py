"""Translate metrics, lengths and checkpoints of a Lightning run to the documented names."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from ..state import TrainerState

_EVALUATION = re.compile(r"^(?:validation|valid|val|eval|test)[_/]")
_TRAINING = re.compile(r"^(?:training|train)[_/]")


def as_evaluation(metrics: dict[str, Any], prefix: str = "eval") -> dict[str, float]:
    """Rename `val_loss`, `val/loss` and `loss` to `eval_loss`; keep single numbers only."""
    renamed = {
        f"{prefix}_{_EVALUATION.sub('', name)}": value for name, value in _once(metrics).items()
    }
    return _numbers(renamed)


def as_training(metrics: dict[str, Any]) -> dict[str, float]:
    """Rename `train_loss` and `train/loss` to `loss`; keep single numbers only."""
    return _numbers({_TRAINING.sub("", name): value for name, value in _once(metrics).items()})


def as_metric_for_best_model(name: str | None) -> str | None:
    """Rename a monitored metric: `val_loss` becomes `eval_loss`."""
    return None if name is None else f"eval_{_EVALUATION.sub('', name)}"


def _once(metrics: dict[str, Any]) -> dict[str, Any]:
    """Drop the second and third name that Lightning gives to values logged for both step and
    epoch.
    """
    doubles = {name for name in metrics if name.rpartition("_")[2] in ("step", "epoch")}
    return {
        name: v
        for name, v in metrics.items()
        if name not in doubles or name.rpartition("_")[0] not in metrics
    }


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """Return tensors of one element as numbers; the only place that synchronizes the device."""
    found = {}
    for name, value in metrics.items():
        if hasattr(value, "numel"):
            if value.numel() != 1:
                continue
            value = value.item()
        if isinstance(value, (int, float)):
            found[name] = value
    return found


_OF_STEPS = ("loss", "grad_norm", "learning_rate")
_SHARDED = ("FSDPStrategy", "DeepSpeedStrategy", "XLAFSDPStrategy")


class Reports:
    """Accumulates losses on the device, so that it is not synchronized between two logs."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.last_logged = 0
        self.grad_norm: Any = None
        self.learning_rate: Any = None
        self._of_step: list[Any] = []  # losses of the micro-batches of a step that has not ended
        self._sums: list[Any] = [None, None]  # since the last log, and of the whole training
        self._counts = [0, 0]
        self._known: dict[str, Any] = {}
        self._of_epochs: set[str] = set()

    def add_loss(self, trainer: Any, module: Any, outputs: Any) -> None:
        """Add the loss of a micro-batch; Lightning has divided it by the number of those in a
        step.
        """
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is None or not hasattr(loss, "detach"):
            return
        loss = loss.detach().float()
        if module.automatic_optimization and trainer.accumulate_grad_batches > 1:
            loss = loss * trainer.accumulate_grad_batches
        self._of_step.append(loss)

    def end_step(self, module: Any) -> None:
        """Count the losses of a step: as one, if the module weighs its micro-batches, or else each
        the same.

        Args:
            module: a LightningModule; those that weigh have a `loss_of_step`.
        """
        weighed = getattr(module, "loss_of_step", None)
        if weighed is not None and self._of_step:
            self._of_step = [weighed.detach().float()]
        self._sum_up()

    def note_norm(self, trainer: Any, module: Any) -> None:
        """Record the norm of all gradients, unless gradients are sharded."""
        from torch.nn.utils import get_total_norm

        if type(trainer.strategy).__name__ not in _SHARDED:
            norm: Any = get_total_norm([p.grad for p in module.parameters() if p.grad is not None])
            self.grad_norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def of_training(self, trainer: Any) -> dict[str, Any]:
        """Return loss, norm and learning rate since the last log, under documented names."""
        logs = {
            "loss": self._mean(trainer, 0),
            "grad_norm": self.grad_norm,
            "learning_rate": self.learning_rate,
        }
        self._sums[0] = None
        self._counts[0] = 0
        self.grad_norm = None
        return {name: value for name, value in logs.items() if value is not None}

    def at_the_end(self, trainer: Any, steps: int) -> dict[str, Any]:
        """Return time, speed and mean loss of the whole training."""
        runtime = time.perf_counter() - self.started
        logs = {
            "train_runtime": round(runtime, 4),
            "train_steps_per_second": round(steps / max(runtime, 1e-9), 3),
        }
        loss = self._mean(trainer, 1)
        return logs if loss is None else {**logs, "train_loss": loss.item()}

    def changed(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics logged since the last call; Lightning keeps older ones too,
        unchanged.
        """
        new = {name: value for name, value in metrics.items() if self._known.get(name) is not value}
        self._known = dict(metrics)
        return {name: value for name, value in new.items() if name not in self._of_epochs}

    def of_epoch(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics logged for the whole epoch: those that changed after its last batch.

        `loss`, which is logged by steps, is `loss_epoch` there.
        """
        self._of_epochs |= {
            name for name, value in metrics.items() if not _is_same(self._known.get(name), value)
        }
        self._known = dict(metrics)
        found = as_training(
            {name: value for name, value in metrics.items() if name in self._of_epochs}
        )
        return {
            f"{name}_epoch" if name in _OF_STEPS else name: value for name, value in found.items()
        }

    def _sum_up(self) -> None:
        for loss in self._of_step:
            for place in (0, 1):
                self._sums[place] = loss if self._sums[place] is None else self._sums[place] + loss
                self._counts[place] += 1
        self._of_step = []

    def _mean(self, trainer: Any, place: int) -> Any:
        self._sum_up()
        if not self._counts[place]:
            return None
        mean = self._sums[place] / self._counts[place]
        return trainer.strategy.reduce(mean, reduce_op="mean") if trainer.world_size > 1 else mean


def _is_same(old: Any, new: Any) -> bool:
    """Return whether two values are equal, NaN included. Synchronizes the device, so it is
    called once an epoch.
    """
    if old is None or new is old:
        return new is old
    left = float(old)
    right = float(new)
    return left == right or (left != left and right != right)


def planned_steps(trainer: Any) -> int:
    """Return the optimizer steps of the whole training, 0 where unknown."""
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    try:
        steps = trainer.estimated_stepping_batches
    except MisconfigurationException:  # the accumulation changes between epochs
        steps = trainer.max_steps
    return int(steps) if 0 < steps < math.inf else 0


def planned_epochs(trainer: Any, max_steps: int) -> int:
    """Return the number of passes over the data, the last one possibly partial; 0 where unknown."""
    batches = trainer.num_training_batches
    if max_steps and 0 < batches < math.inf:
        return math.ceil(max_steps / math.ceil(batches / trainer.accumulate_grad_batches))
    return max(trainer.max_epochs or 0, 0)


def epochs_done(trainer: Any, batches_done: int, max_steps: int) -> float:
    """Return the epochs with the fraction of the current one; for a stream, the whole training
    is one epoch.
    """
    batches = trainer.num_training_batches
    if not 0 < batches < math.inf:
        batches = max_steps * trainer.accumulate_grad_batches
    return trainer.current_epoch + (batches_done / batches if batches else 0.0)


class BridgeCheckpoints:
    """Writes `checkpoint-N` through the Lightning Trainer, and keeps `save_total_limit` of them."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.is_writing = False
        self.was_written_by_another = False

    def save(self, trainer: Any, state: TrainerState, args: Any) -> None:
        """Write one, on all processes."""
        suffix = "" if _makes_folders(trainer) else ".ckpt"
        path = os.path.join(str(args.output_dir), f"checkpoint-{state.global_step}{suffix}")
        if state.best_global_step == state.global_step:
            state.best_model_checkpoint = path
        self.written = [*(one for one in self.written if one != path), path]
        self.is_writing = True
        try:
            trainer.save_checkpoint(path)
        finally:
            self.is_writing = False
        self._rotate(trainer, state, args.save_total_limit)

    def note(self) -> None:
        """Note that Lightning is about to write a checkpoint."""
        self.was_written_by_another = self.was_written_by_another or not self.is_writing

    def _rotate(self, trainer: Any, state: TrainerState, limit: int | None) -> None:
        if not limit:
            return
        spared = {self.written[-1], state.best_model_checkpoint}
        oldest = [path for path in self.written if path not in spared]
        while len(self.written) > limit and oldest:
            path = oldest.pop(0)
            self.written.remove(path)
            trainer.strategy.remove_checkpoint(path)


def _makes_folders(trainer: Any) -> bool:
    """Return whether the checkpoint plugin, or one that it wraps, writes folders in the
    documented layout.
    """
    plugin = trainer.strategy.checkpoint_io
    while plugin is not None:
        if any(base.__name__ == "FolderCheckpointIO" for base in type(plugin).__mro__):
            return True
        plugin = getattr(plugin, "checkpoint_io", None)
    return False
