"""The values that a `LightningBridge` logs, under the documented names."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from .._gradients import dense_values, gather_full_tensor, ids_of_weights
from .._log_values import number_of

if TYPE_CHECKING:
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from torch.optim import Optimizer

    from ..state import TrainerState

_EVALUATION_PREFIX = re.compile(r"^(?:validation|valid|val|eval|test)[_/]")
_TRAINING_PREFIX = re.compile(r"^(?:training|train)[_/]")

_LOGGED_BY_STEP = ("loss", "grad_norm", "learning_rate")
"""Names that the logs of steps have; a metric of an epoch gets another name."""

_SHARDED_STRATEGIES = {"FSDPStrategy", "DeepSpeedStrategy", "XLAFSDPStrategy"}


def as_evaluation(metrics: Mapping[str, object], prefix: str = "eval") -> dict[str, float]:
    """Rename `val_loss`, `val/loss` and `loss` to `eval_loss`; keep single numbers only."""
    renamed: dict[str, Any] = {}
    for name, value in _without_duplicates(metrics).items():
        metric = _EVALUATION_PREFIX.sub("", name)
        renamed[f"{prefix}_{metric}"] = value
    return _numbers(renamed)


def as_training(metrics: Mapping[str, object]) -> dict[str, float]:
    """Rename `train_loss` and `train/loss` to `loss`; keep single numbers only."""
    renamed: dict[str, Any] = {}
    for name, value in _without_duplicates(metrics).items():
        renamed[_TRAINING_PREFIX.sub("", name)] = value
    return _numbers(renamed)


def as_metric_for_best_model(name: str | None) -> str | None:
    """Rename a monitored metric: `val_loss` becomes `eval_loss`."""
    if name is None:
        return None
    metric = _EVALUATION_PREFIX.sub("", name)
    return f"eval_{metric}"


def last_evaluated_step(state: TrainerState) -> int:
    """Return the step of the last evaluation in the log history; 0 without one."""
    for entry in reversed(state.log_history):
        if "eval_runtime" in entry:
            return int(entry["step"])
    return 0


def _without_duplicates(metrics: Mapping[str, object]) -> dict[str, object]:
    """Return the metrics without those that repeat another one.

    Lightning stores a value that is logged for both step and epoch as `NAME`, `NAME_step` and
    `NAME_epoch`.
    """
    unique: dict[str, object] = {}
    for name, value in metrics.items():
        base_name, _, suffix = name.rpartition("_")
        if suffix in ("step", "epoch") and base_name in metrics:
            continue
        unique[name] = value
    return unique


def _numbers(metrics: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers and tensors of one element, as numbers; synchronizes the device."""
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        number = number_of(value, accept_bool=True)
        if number is not None:
            numbers[name] = number
    return numbers


class _MeanLoss:
    """The mean of losses, on their device."""

    def __init__(self) -> None:
        self.sum: torch.Tensor | None = None
        self.count = 0

    def add(self, loss: torch.Tensor) -> None:
        self.sum = loss if self.sum is None else self.sum + loss
        self.count += 1

    def compute(self, trainer: Trainer) -> torch.Tensor | None:
        """Return the mean over all processes; None without losses."""
        if self.sum is None:
            return None
        mean = self.sum / self.count
        if trainer.world_size > 1:
            return trainer.strategy.reduce(mean, reduce_op="mean")  # pyright: ignore[reportUnknownMemberType] - untyped in Lightning
        return mean

    def reset(self) -> None:
        self.sum = None
        self.count = 0


class LogCollector:
    """Collects the values of logs, on the device, so that it is synchronized only for a log.

    Attributes:
        last_logged_step: the step of the last log.
        grad_norms: the norm of the gradients of each optimizer that has stepped in this batch, by
            the `id` of the optimizer, in a step that will be logged.
        learning_rate: the learning rate of the last optimizer step.
    """

    def __init__(self) -> None:
        self.last_logged_step = 0
        self.grad_norms: dict[int, torch.Tensor] = {}
        self.learning_rate: float | None = None
        self._start_time = time.perf_counter()

        # The losses of the micro-batches of a step that has not ended, and their means.
        self._losses_of_step: list[torch.Tensor] = []
        self._loss_since_log = _MeanLoss()
        self._loss_of_training = _MeanLoss()

        # The metrics that were logged before, and the names of those that are logged by epochs.
        self._seen_metrics: dict[str, Any] = {}
        self._epoch_metric_names: set[str] = set()

    def add_loss(self, trainer: Trainer, module: LightningModule, outputs: object) -> None:
        """Add the loss of a micro-batch.

        Args:
            trainer: Lightning's Trainer.
            module: the LightningModule.
            outputs: the outputs of `training_step`: the loss, a mapping with it, or None.
        """
        output: Any = outputs
        if isinstance(outputs, Mapping):
            output = cast("Mapping[str, Any]", outputs).get("loss")
        if output is None or not hasattr(output, "detach"):
            return
        loss: torch.Tensor = output.detach().float()

        # Lightning has divided the loss by the number of micro-batches.
        if module.automatic_optimization and trainer.accumulate_grad_batches > 1:
            loss = loss * trainer.accumulate_grad_batches
        self._losses_of_step.append(loss)

    def end_step(self, module: LightningModule) -> None:
        """Count the losses of a step.

        If the module weighs its micro-batches, so that it has a `loss_of_step`, that is the loss of
        the step. Otherwise all micro-batches count the same.
        """
        loss_of_step = getattr(module, "loss_of_step", None)
        if loss_of_step is not None and self._losses_of_step:
            self._losses_of_step = [loss_of_step.detach().float()]
        self._sum_up()

    def record_grad_norm(
        self, trainer: Trainer, module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Record the norm of the gradients of an optimizer, unless gradients are sharded.

        Nothing clears the gradients of other weights before this step.
        """
        from torch.nn.utils import get_total_norm

        strategy_names = [base.__name__ for base in type(trainer.strategy).__mro__]
        if not _SHARDED_STRATEGIES.isdisjoint(strategy_names):
            return
        owned = ids_of_weights(optimizer)
        gradients: list[torch.Tensor] = []
        for weight in module.parameters():
            if weight.grad is not None and id(weight) in owned:
                gradients.append(dense_values(weight.grad))
        self.grad_norms[id(optimizer)] = gather_full_tensor(get_total_norm(gradients))

    def pop_training_logs(self, trainer: Trainer) -> dict[str, float | torch.Tensor]:
        """Return loss, norm and learning rate since the last log, and start again."""
        self._sum_up()
        logs = {
            "loss": self._loss_since_log.compute(trainer),
            "grad_norm": self._norm_of_all_gradients(),
            "learning_rate": self.learning_rate,
        }
        self._loss_since_log.reset()
        self.grad_norms = {}
        return {name: value for name, value in logs.items() if value is not None}

    def summary(self, trainer: Trainer, steps: int) -> dict[str, float]:
        """Return time, speed and mean loss of the training.

        Args:
            trainer: Lightning's Trainer.
            steps: taken since the training began or was resumed.
        """
        self._sum_up()
        runtime = time.perf_counter() - self._start_time
        logs = {
            "train_runtime": round(runtime, 4),
            "train_steps_per_second": round(steps / max(runtime, 1e-9), 3),
        }
        loss = self._loss_of_training.compute(trainer)
        if loss is not None:
            logs["train_loss"] = loss.item()
        return logs

    def losses_since_log(self, trainer: Trainer) -> dict[str, Any]:
        """Return what the next log will contain of the losses so far. All processes must call this.

        Returns:
            The sums of the losses of complete steps, and of those of the current step, both as
            means over all processes; and their numbers.
        """
        import torch

        since_log = self._loss_since_log
        zero = torch.zeros((), device=trainer.strategy.root_device)
        sum_since_log = zero if since_log.sum is None else since_log.sum
        sums = torch.stack([sum_since_log, sum(self._losses_of_step, zero)])
        if trainer.world_size > 1:
            sums = trainer.strategy.reduce(sums, reduce_op="mean")  # pyright: ignore[reportUnknownMemberType] - untyped in Lightning
        return {"sums": sums, "counts": [since_log.count, len(self._losses_of_step)]}

    def load_losses(self, losses: Mapping[str, Any], trainer: Trainer) -> None:
        """Continue with the losses of a checkpoint.

        Args:
            losses: the result of `losses_since_log`; empty of a checkpoint of another version.
            trainer: Lightning's Trainer.
        """
        if not losses:
            return
        sum_since_log, sum_of_step = losses["sums"].to(trainer.strategy.root_device)
        count_since_log, count_of_step = losses["counts"]
        if count_since_log:
            self._loss_since_log.sum = sum_since_log
            self._loss_since_log.count = count_since_log
        if count_of_step:
            self._losses_of_step = [sum_of_step / count_of_step] * count_of_step

    def mark_as_seen(self, metrics: Mapping[str, object]) -> None:
        """Exclude the current values of these metrics from the following logs."""
        self._seen_metrics = dict(metrics)

    def new_metrics(self, metrics: Mapping[str, object]) -> dict[str, Any]:
        """Return the metrics that were logged since the last call, except those of epochs.

        Args:
            metrics: all metrics of Lightning, which keeps old values as the same objects.
        """
        # Compared by identity, which does not synchronize the device.
        changed: dict[str, Any] = {}
        for name, value in metrics.items():
            is_changed = self._seen_metrics.get(name) is not value
            if is_changed and name not in self._epoch_metric_names:
                changed[name] = value
        self.mark_as_seen(metrics)
        return changed

    def epoch_metrics(self, metrics: Mapping[str, object]) -> dict[str, float]:
        """Return the metrics of the epoch: those that have changed after its last batch.

        A metric with the name of a value that is logged by steps gets the suffix `_epoch`.

        Args:
            metrics: all metrics of Lightning.
        """
        # Compared by value, since Lightning may store an unchanged value as a new object.
        for name, value in metrics.items():
            if not _is_same(self._seen_metrics.get(name), value):
                self._epoch_metric_names.add(name)
        self.mark_as_seen(metrics)

        of_epoch = {name: metrics[name] for name in metrics if name in self._epoch_metric_names}
        logs: dict[str, float] = {}
        for name, value in as_training(of_epoch).items():
            if name in _LOGGED_BY_STEP:
                name = f"{name}_epoch"
            logs[name] = value
        return logs

    def _norm_of_all_gradients(self) -> torch.Tensor | None:
        from torch.nn.utils import get_total_norm

        norms = list(self.grad_norms.values())
        if not norms:
            return None
        if len(norms) == 1:
            return norms[0]
        return get_total_norm(norms)

    def _sum_up(self) -> None:
        for loss in self._losses_of_step:
            self._loss_since_log.add(loss)
            self._loss_of_training.add(loss)
        self._losses_of_step = []


def _is_same(old: Any, new: Any) -> bool:
    """Return whether two values are equal, NaN included.

    Synchronizes the device, so it is called once an epoch.
    """
    if new is old:
        return True
    if old is None:
        return False
    old_number = float(old)
    new_number = float(new)
    are_both_nan = old_number != old_number and new_number != new_number
    return old_number == new_number or are_both_nan
