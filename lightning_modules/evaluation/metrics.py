"""torchmetrics objects under one roof: fed batch by batch, read by name, in memory that does not grow with the data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ..internals.lightning_import import torchmetrics
from .metric_inputs import InputKind, input_kind, metric_inputs, shifted

Metric, MetricCollection = torchmetrics.Metric, torchmetrics.MetricCollection


class Arguments(NamedTuple):
    """What `update` is called with; `counts` is False where it shows shapes only."""

    positional: tuple[Any, ...]
    keywords: dict[str, Any]
    counts: bool = True


class BatchMetrics(nn.Module):
    """As a `compute_metrics` function, but made of torchmetrics objects: nothing is kept but their sums.

    Works in `Trainer(compute_metrics=...)` and in `LossModule(metrics=...)`; both take the metrics without this class
    too, which is only needed to say how a batch becomes the arguments of `update`.

    Args:
        metrics: a `Metric`, a `MetricCollection`, or a dict of them. A metric is called as the dict calls it, by itself
            and in a collection by its class; a metric that computes several values gives each of them its name.
        prepare: `prepare(predictions, labels)` returns the arguments of `update`: a tuple, a dict of keywords, or None
            where nothing is to be counted. It may also take `inputs`, the batch, and `loss`. By default predictions
            are taken for logits, and labels of -100 are left out; `metric_inputs.py` has the rule in full.
        shift: the label at a position belongs to the prediction one position earlier. By default so for causal language
            models.

    Raises:
        TypeError: something is no metric.
        ValueError: no rule says how logits and labels reach a metric, and there is no `prepare`.
    """

    def __init__(self, metrics: Any, prepare: Callable[..., Any] | None = None, *, shift: bool | None = None) -> None:
        super().__init__()
        named = dict(metrics) if _is_named(metrics) else {"": metrics}
        _require_metrics(named)
        self.names = list(named)
        self.metrics: Any = nn.ModuleList(named.values())
        self.prepare = prepare
        self.shift = shift
        self.takes = _further_parameters(prepare)
        self._kinds = [] if prepare else [[input_kind(one) for one in _each(metric)] for metric in named.values()]

    @torch.no_grad()
    def update(
        self, predictions: Any, labels: Any, *, inputs: Any = None, loss: Any = None, shift: bool = False
    ) -> None:
        """Count a batch.

        Args:
            predictions: what the model returned beside the loss.
            labels: the labels, None if there are none.
            inputs: the batch, for a `prepare` that takes it.
            loss: the loss of the batch, for a `prepare` that takes it.
            shift: whether the model is a causal one, where `self.shift` does not say.
        """
        for metric, given in self._arguments(predictions, labels, inputs=inputs, loss=loss, shift=shift):
            if not all(arguments.counts for arguments in given):
                _show_shapes(metric, given)
            elif all(arguments is given[0] for arguments in given):
                metric.update(*given[0].positional, **given[0].keywords)
            else:
                for one, arguments in zip(_each(metric), given, strict=True):
                    one.update(*arguments.positional, **arguments.keywords)

    @torch.no_grad()
    def update_without_counting(self, predictions: Any, labels: Any, **further: Any) -> None:
        """Show metrics what batches look like, see `update` for the arguments.

        For a process without a sample of its own: synchronisation needs states of the same shapes everywhere.
        """
        for metric, given in self._arguments(predictions, labels, **further):
            _show_shapes(metric, given)

    def compute(self) -> dict[str, Any]:
        """The values by name, over all batches and processes: each process has to call this."""
        values: dict[str, Any] = {}
        for name, metric in zip(self.names, self.metrics, strict=True):
            values |= _named_values(name, metric, metric.compute())
        return values

    def reset(self) -> None:
        """Forget all batches."""
        for metric in self.metrics:
            metric.reset()

    def _arguments(
        self, predictions: Any, labels: Any, *, inputs: Any = None, loss: Any = None, shift: bool = False
    ) -> Iterator[tuple[Any, list[Arguments]]]:
        """Each metric or collection, with the arguments of the one metric, or of each in the collection."""
        if self.prepare is not None:
            further = {"inputs": inputs, "loss": loss}
            prepared = self.prepare(predictions, labels, **{name: further[name] for name in self.takes})
            if prepared is not None:
                given = _as_arguments(prepared)
                yield from ((metric, [given for _ in _each(metric)]) for metric in self.metrics)
            return
        if shift if self.shift is None else self.shift:
            predictions, labels = shifted(predictions, labels)
        made: dict[InputKind, Arguments] = {}
        for metric, kinds in zip(self.metrics, self._kinds, strict=True):
            for kind in kinds:
                if kind not in made:
                    made[kind] = _counted_or_made_up(*metric_inputs(kind, predictions, labels))
            yield metric, [made[kind] for kind in kinds]


def as_batch_metrics(value: Any) -> BatchMetrics:
    """Metrics as `BatchMetrics`, which are left as they are."""
    return value if isinstance(value, BatchMetrics) else BatchMetrics(value)


def _as_arguments(prepared: Any) -> Arguments:
    if isinstance(prepared, Mapping):
        return Arguments((), dict(prepared))
    return Arguments(tuple(prepared) if isinstance(prepared, (tuple, list)) else (prepared,), {})


def _counted_or_made_up(predictions: torch.Tensor, labels: torch.Tensor) -> Arguments:
    """The arguments, or where no label counts those of one sample that is made up, to show what samples look like."""
    if labels.numel():
        return Arguments((predictions, labels), {})
    one = (*labels.shape[:-1], 1)
    sample = predictions.new_zeros((*one, *predictions.shape[labels.ndim :]))
    return Arguments((sample, labels.new_zeros(one)), {}, counts=False)


def _show_shapes(metric: Any, given: list[Arguments]) -> None:
    """Put tensors of no rows into states that are lists, so that all processes have the same to synchronise."""
    for one, arguments in zip(_each(metric), given, strict=True):
        if one.update_called:
            continue
        example = one.clone()
        example.update(*arguments.positional, **arguments.keywords)
        for name, state in example.metric_state.items():
            if isinstance(state, list):
                setattr(one, name, [row[:0] for row in state if isinstance(row, torch.Tensor) and row.ndim])


def _each(metric: Any) -> Iterable[Any]:
    """The metrics of a collection, or the metric itself."""
    return list(metric.values(copy_state=False)) if isinstance(metric, MetricCollection) else [metric]


def _named_values(name: str, metric: Any, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {f"{name}_{key}" if name else str(key): part for key, part in value.items()}
    return {name or type(metric).__name__: value}


def _is_named(metrics: Any) -> bool:
    return isinstance(metrics, Mapping) and not isinstance(metrics, MetricCollection)


def _require_metrics(named: Mapping[str, Any]) -> None:
    wrong = [
        f"{name!r}: {type(metric).__name__}" if name else type(metric).__name__
        for name, metric in named.items()
        if not isinstance(metric, (Metric, MetricCollection))
    ]
    if wrong or not named:
        raise TypeError(
            "metrics must be a torchmetrics Metric, a MetricCollection, or a dict of them, but there "
            f"{'is nothing in it' if not named else 'is ' + ', '.join(wrong)}. A list of metrics becomes a "
            "MetricCollection(list)."
        )


def _further_parameters(prepare: Callable[..., Any] | None) -> list[str]:
    if prepare is None:
        return []
    parameters = inspect.signature(prepare).parameters
    any_keyword = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return [name for name in ("inputs", "loss") if any_keyword or name in parameters]
