"""GreedyLR (arXiv:2512.14527): raises the learning rate while a metric improves, else lowers it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, SupportsFloat

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..common.schedule_curves import require_numbers

logger = logging.getLogger(__name__)

_STATE_NAMES = (
    "factor",
    "min_lrs",
    "max_lrs",
    "patience",
    "verbose",
    "cooldown",
    "warmup",
    "cooldown_counter",
    "warmup_counter",
    "mode",
    "threshold",
    "threshold_mode",
    "best",
    "num_bad_epochs",
    "num_good_epochs",
    "eps",
    "last_epoch",
    "smooth",
    "window_size",
    "reset_start",
    "reset_start_original",
    "_last_lr",
    "_init_lrs",
)


class StreamingAverage:
    """Average the last values of a stream of numbers.

    Works like `transformers.optimization.StreamingAverage`.
    """

    def __init__(self, window_size: int) -> None:
        """Set the length of the window.

        Args:
            window_size: number of values, at least 1.

        Raises:
            ValueError: it is below 1.
            TypeError: it is not a number.
        """
        require_numbers(type(self).__name__, {"window_size": window_size})
        self.window_size = window_size
        self.values: deque[float] = deque()
        self.sum = 0.0

    def streamavg(self, value: float) -> float:
        """Add a value, and return the mean of those in the window."""
        self.values.append(value)
        self.sum += value
        if len(self.values) > self.window_size:
            self.sum -= self.values.popleft()
        return self.sum / len(self.values)

    def state_dict(self) -> dict[str, Any]:
        """Return the window and its values."""
        return {"window_size": self.window_size, "values": list(self.values), "sum": self.sum}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a `state_dict`."""
        self.window_size = state_dict["window_size"]
        self.sum = state_dict["sum"]
        self.values = deque(state_dict["values"])


class GreedyLR(ReduceLROnPlateau):
    """Raise the learning rates while a metric improves, and lower them while it does not.

    Works like `transformers.optimization.GreedyLR` (5.4 and later), but Lightning accepts it.

    Lightning expects a `ReduceLROnPlateau`, which is stepped with a metric. After more than
    `patience` steps in a row with a better metric all rates are divided by `factor`, after as many
    steps without one they are multiplied by it. In the pause that follows no metric counts. After
    `reset_start` changes at the lowest rates it starts again with the first rates. (Algorithm 1 of
    arXiv:2512.14527.)
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: Literal["min", "max"] = "min",
        factor: float = 0.95,
        patience: int = 10,
        threshold: float = 1e-6,
        threshold_mode: Literal["rel", "abs"] = "abs",
        cooldown: int = 0,
        warmup: int = 0,
        min_lr: float | list[float] = 1e-3,
        max_lr: float | list[float] = 1.0,
        eps: float = 1e-8,
        verbose: bool = False,
        smooth: bool = False,
        window_size: int = 50,
        reset_start: int = 500,
    ) -> None:
        """Start from the rates of the optimizer.

        Args:
            optimizer: its learning rates are set.
            mode: "min" if a lower metric is better, "max" if a higher one is.
            factor: between 0 and 1.
            patience: steps in a row that do not change the rates yet.
            threshold: by how much a metric has to be better to count as better.
            threshold_mode: whether `threshold` is a fraction of the best metric so far ("rel"), or
                the difference to it ("abs").
            cooldown: steps after a decrease in which no metric counts.
            warmup: steps after an increase in which no metric counts.
            min_lr: lowest learning rate, one for each group or for all. A rate below it is never
                lowered.
            max_lr: highest learning rate, one for each group or for all.
            eps: smallest change of a rate; smaller changes are not made.
            verbose: whether each change is printed.
            smooth: whether the metrics are averaged over the last `window_size` steps.
            window_size: number of steps to average over.
            reset_start: decreases at the lowest rates, after which it starts again.

        Raises:
            ValueError: a number is out of its range, or the number of rates is not that of the
                groups; the message names it.
            TypeError: one of the numbers is not a number.
        """
        numbers = {
            "factor": factor,
            "patience": patience,
            "threshold": threshold,
            "cooldown": cooldown,
            "eps": eps,
            "warmup": warmup,
            "min_lr": min_lr,
            "max_lr": max_lr,
            "reset_start": reset_start,
            "window_size": window_size,
        }
        require_numbers(type(self).__name__, numbers)
        if factor >= 1:
            raise ValueError(
                f"`factor` is {factor!r}, but has to be below 1: a rate is multiplied by it to be "
                "lowered."
            )

        # The constructor of torch calls `_reset`, which reads this attribute.
        self._streaming_avg: StreamingAverage | None = None
        super().__init__(
            optimizer, mode, factor, patience, threshold, threshold_mode, cooldown, min_lr, eps
        )
        self.max_lrs = _for_each_group(max_lr, optimizer)
        self.warmup = warmup
        self.verbose = verbose
        self.smooth = smooth
        self.window_size = window_size
        self.reset_start = reset_start
        self.reset_start_original = reset_start
        self._init_lrs = self._rates()
        self._warn_of_low_rate()

    def _warn_of_low_rate(self) -> None:
        """Warn of the first rate that is below its lowest one."""
        for rate, lowest in zip(self._init_lrs, self.min_lrs, strict=True):
            if rate < lowest:
                logger.warning(
                    "The learning rate %g is below `min_lr` (%g): GreedyLR may raise it, but never "
                    "lowers it. Pass a lower `min_lr` (with a Trainer, in `lr_scheduler_kwargs`).",
                    rate,
                    lowest,
                )
                return

    def _reset(self) -> None:
        super()._reset()
        self.warmup_counter = 0
        self.num_good_epochs = 0
        if self._streaming_avg is not None:
            self._streaming_avg = StreamingAverage(self.window_size)

    def step(self, metrics: SupportsFloat, epoch: int | None = None) -> None:
        """Set the learning rates of the next steps from a metric.

        Args:
            metrics: the newest value of the metric.
            epoch: number of this step, for messages; by default steps are counted.
        """
        metric = self._smoothed(float(metrics))
        if epoch is None:
            epoch = self.last_epoch + 1
        self.last_epoch = epoch
        if self.cooldown_counter or self.warmup_counter:
            self._pause()
        else:
            self._count_metric(metric)
            self._change_rates()
        self._last_lr = [*self._rates()]

    def _smoothed(self, metric: float) -> float:
        if not self.smooth:
            return metric
        if self._streaming_avg is None:
            self._streaming_avg = StreamingAverage(self.window_size)
        return self._streaming_avg.streamavg(metric)

    def _pause(self) -> None:
        self.cooldown_counter = max(0, self.cooldown_counter - 1)
        self.warmup_counter = max(0, self.warmup_counter - 1)
        self.num_bad_epochs = 0
        self.num_good_epochs = 0

    def _count_metric(self, metric: float) -> None:
        """Count a metric as better or not better than the best."""
        if self._improves(metric):
            self.best = metric
            self.num_good_epochs = self.num_good_epochs + 1
            self.num_bad_epochs = 0
        else:
            self.num_good_epochs = 0
            self.num_bad_epochs = self.num_bad_epochs + 1

    def _change_rates(self) -> None:
        """Raise or lower the rates once more than `patience` metrics in a row call for it."""
        if self.num_good_epochs > self.patience:
            self._raise_rates()
            self.warmup_counter = self.warmup
            self.num_good_epochs = 0
            self.reset_start = self.reset_start_original
        elif self.num_bad_epochs > self.patience:
            self._lower_rates()
            self._count_to_reset()
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0

    def _improves(self, metric: float) -> bool:
        """Return whether a metric is better than the best.

        torch's own method differs between versions.
        """
        change = self.threshold
        if self.mode == "min":
            change = -change
        bound = self.best + change
        if self.threshold_mode == "rel":
            bound = self.best * (1 + change)
        if self.mode == "max":
            return metric > bound
        return metric < bound

    def _raise_rates(self) -> None:
        for index, (rate, highest) in enumerate(zip(self._rates(), self.max_lrs, strict=True)):
            raised = min(rate / self.factor, highest)
            if raised - rate > self.eps:
                self._set_rate(index, raised, "rises to")

    def _lower_rates(self) -> None:
        for index, (rate, lowest) in enumerate(zip(self._rates(), self.min_lrs, strict=True)):
            lowered = max(rate * self.factor, lowest)
            if rate - lowered > self.eps:
                self._set_rate(index, lowered, "falls to")

    def _count_to_reset(self) -> None:
        """Start again with the first rates after `reset_start` calls at the lowest rates."""
        for rate, lowest in zip(self._rates(), self.min_lrs, strict=True):
            if rate > lowest:
                return
        self.reset_start -= 1
        if self.reset_start <= 0:
            for index, rate in enumerate(self._init_lrs):
                self._set_rate(index, rate, "is reset to")
            self._reset()
            self.reset_start = self.reset_start_original

    def _rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def _set_rate(self, index: int, rate: float, verb: str) -> None:
        group = self.optimizer.param_groups[index]
        # A compiled step reads the tensor, so that has to stay the same object.
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
        if self.verbose:
            print(f"Step {self.last_epoch}: the learning rate of group {index} {verb} {rate:.4e}.")

    def state_dict(self) -> dict[str, Any]:
        """Return settings, counters and the values in the window, for a checkpoint."""
        state = {name: getattr(self, name) for name in _STATE_NAMES}
        if self._streaming_avg is not None:
            state["_streaming_avg"] = self._streaming_avg.state_dict()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore settings, counters and the values in the window.

        Args:
            state_dict: from `state_dict`.
        """
        average = state_dict.get("_streaming_avg")
        names = [name for name in _STATE_NAMES if name in state_dict]
        super().load_state_dict({name: state_dict[name] for name in names})
        self._streaming_avg = None
        if average is not None:
            self._streaming_avg = StreamingAverage(self.window_size)
            self._streaming_avg.load_state_dict(average)


def _for_each_group(rates: float | list[float], optimizer: Optimizer) -> list[float]:
    groups = len(optimizer.param_groups)
    if not isinstance(rates, (list, tuple)):
        return [rates] * groups
    if len(rates) != groups:
        raise ValueError(
            f"`max_lr` has {len(rates)} rates, but the optimizer has {groups} parameter groups: "
            "pass one rate for each group."
        )
    return list(rates)
