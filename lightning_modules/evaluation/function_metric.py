"""Metric that calls a function with the predictions and labels of a whole evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..internals.lightning_import import torchmetrics
from .joined_objects import join_objects


class FunctionMetric(torchmetrics.Metric):
    """Metric that calls a function once with the predictions and labels of all batches.

    These are tensors gathered from all ranks, and are kept on the device until then. Rows of
    different lengths are padded with -100 on the right. With several processes, the order of
    samples differs from the dataset.

    Args:
        function: `function(predictions, labels)` returns a number, a tensor with one number, or a
            dict of these.
        name: the name of the metric, for messages.
    """

    full_state_update = False

    preds: Any
    target: Any

    def __init__(self, function: Callable[[Tensor, Tensor], Any], name: str) -> None:
        super().__init__()
        self.function = function
        self.name = name
        self.add_state("preds", [], dist_reduce_fx=join_objects)
        self.add_state("target", [], dist_reduce_fx=join_objects)

    def __deepcopy__(self, memo: dict[int, Any]) -> FunctionMetric:
        """Return an empty metric with the same function.

        The function is not copied, because copying a method would copy its object.
        """
        return FunctionMetric(self.function, self.name)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Keep a batch."""
        self.preds.append(preds.detach())
        self.target.append(target.detach())

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Join the batches, whose number may differ between ranks, and gather the states.

        Args:
            args: as for `torchmetrics.Metric.sync`.
            kwargs: as for `torchmetrics.Metric.sync`.
        """
        if self.preds:
            self.preds = [join_objects(self.preds)]
            self.target = [join_objects(self.target)]
        super().sync(*args, **kwargs)

    def compute(self) -> Any:
        """Call the function and return its result; NaN if no sample was seen."""
        preds = _joined(self.preds)
        if len(preds) == 0:
            return float("nan")
        return self.function(preds, _joined(self.target))


def _joined(state: object) -> Any:
    """Return the tensor of a state.

    The state is a list of batches until torchmetrics has synchronised it.
    """
    if isinstance(state, list) and state:
        return join_objects(state)
    return state
