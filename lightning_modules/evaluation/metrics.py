"""`BatchMetrics`: metrics of torchmetrics, and functions, that are updated with each batch."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..internals.lightning_import import torchmetrics
from .function_metric import FunctionMetric
from .metric_inputs import align_with_next_labels, input_family, metric_inputs

Metric = torchmetrics.Metric
MetricCollection = torchmetrics.MetricCollection


class Arguments(NamedTuple):
    """The arguments of a metric's `update`."""

    positional: tuple[Any, ...]
    keywords: dict[str, Any]
    counts: bool = True
    """False for a dummy sample, which only provides the shapes of samples."""


class MetricUpdate(NamedTuple):
    """A metric, or a collection, with the arguments of its `update`."""

    metric: Any
    arguments: list[Arguments]
    """Arguments of the metric, or of each metric in the collection."""


@contextlib.contextmanager
def metric_dtype() -> Iterator[None]:
    """Use at least float32 for new tensors within the `with` block, even for a half-precision
    model.

    A sum in bfloat16 stops growing at 256 times the added value. In a step with
    `precision="bf16-true"`, and in `configure_model`, torch's default dtype is that of the model.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.promote_types(default, torch.float32))
    try:
        yield
    finally:
        torch.set_default_dtype(default)


class BatchMetrics(nn.Module):
    """Computes metrics batch by batch with objects of torchmetrics or with functions.

    Pass it as `Trainer(compute_metrics=...)` or `LossModule(metrics=...)`. Both also accept the
    metrics without this class, which is only needed to define how a batch becomes the arguments of
    `update`.

    Args:
        metrics: a `Metric`, a `MetricCollection`, or a dict of these and of functions. A metric has
            its name in the dict; without a dict, and in a collection, it has the name of its class.
            A metric that computes several values gives each of them its name. A function is called
            as `function(predictions, labels)`, see `FunctionMetric`.
        prepare: `prepare(predictions, labels)` returns the arguments of `update`: a tuple, a dict
            of keywords, or None if no sample counts. It may also have parameters `inputs`, for the
            batch, and `loss`. By default the predictions are logits, and labels of -100 are left
            out; `metric_inputs.py` has the complete rule.
        shift: whether the label at a position belongs to the prediction one position earlier. By
            default it does for causal language models.

    Raises:
        TypeError: an entry is neither a metric nor a function.
        ValueError: a metric needs other arguments than logits and labels, and there is no
            `prepare`.
    """

    def __init__(
        self, metrics: Any, prepare: Callable[..., Any] | None = None, *, shift: bool | None = None
    ) -> None:
        super().__init__()

        # Without a name the values have the names of their classes.
        named = {"": metrics}
        if isinstance(metrics, Mapping) and not isinstance(metrics, MetricCollection):
            named = {name: _as_metric(name, metric) for name, metric in metrics.items()}
        _require_metrics(named)
        self.names = list(named)
        self.metrics: Any = nn.ModuleList(named.values())
        self.prepare = prepare
        self.shift = shift
        self.takes = _optional_parameters(prepare)
        self._families: list[list[str]] = []
        """The family of each metric, or of each one in a collection; empty with a `prepare`."""
        if prepare is None:
            for metric in named.values():
                self._families.append([input_family(part) for part in _metrics_of(metric)])

    @torch.no_grad()
    @metric_dtype()
    def update(
        self,
        predictions: object,
        labels: object,
        *,
        inputs: object = None,
        loss: object = None,
        shift: bool = False,
    ) -> None:
        """Count a batch.

        Args:
            predictions: the outputs of the model, except the loss.
            labels: the labels, or None.
            inputs: the batch, for a `prepare` that has this parameter.
            loss: the loss of the batch, for a `prepare` that has this parameter.
            shift: whether the model is a causal one; `self.shift` overrides it.
        """
        for metric, all_arguments in self._updates(
            predictions, labels, inputs=inputs, loss=loss, shift=shift
        ):
            first = all_arguments[0]
            if not all(arguments.counts for arguments in all_arguments):
                _show_shapes(metric, all_arguments)
            elif all(arguments is first for arguments in all_arguments):
                # The whole collection is updated: its metrics may share states, which it updates
                # once.
                metric.update(*first.positional, **first.keywords)
            else:
                for part, arguments in zip(_metrics_of(metric), all_arguments, strict=True):
                    part.update(*arguments.positional, **arguments.keywords)

    @torch.no_grad()
    @metric_dtype()
    def update_without_counting(self, predictions: object, labels: object, **further: Any) -> None:
        """Show metrics the shapes of a batch, without counting it.

        A process that has seen no sample needs this: metrics can only be synchronised if their
        states have the same shapes in all processes.

        Args:
            predictions: the outputs of the model, except the loss.
            labels: the labels, or None.
            further: the other arguments of `update`.
        """
        for metric, all_arguments in self._updates(predictions, labels, **further):
            _show_shapes(metric, all_arguments)

    def compute(self, process_group: Any = None) -> dict[str, Any]:
        """Return the values by name, over all batches and processes; all processes have to call it.

        Args:
            process_group: the processes that saw different samples; by default all of them. The
                group of a metric that has one is used instead.
        """
        values: dict[str, Any] = {}
        for name, metric in zip(self.names, self.metrics, strict=True):
            with _synchronised_over(metric, process_group):
                values |= _named_values(name, metric, metric.compute())
        return values

    def value_names(self) -> list[str]:
        """Return the names of the values that are known before a metric is computed."""
        names: list[str] = []
        for name, metric in zip(self.names, self.metrics, strict=True):
            if isinstance(metric, MetricCollection):
                names += [f"{name}_{key}" if name else str(key) for key in metric]
            else:
                names.append(name or type(metric).__name__)
        return names

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> BatchMetrics:
        """Move the metrics to another device with the model, but keep their dtype.

        `module.to(torch.bfloat16)` does not change them.
        """

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(move, *args, **kwargs)

    def reset(self) -> None:
        """Reset all metrics."""
        for metric in self.metrics:
            metric.reset()

    def _updates(
        self,
        predictions: object,
        labels: object,
        *,
        inputs: object = None,
        loss: object = None,
        shift: bool = False,
    ) -> Iterator[MetricUpdate]:
        """Yield the update of each metric or collection for a batch."""
        if self.prepare is not None:
            optional = {"inputs": inputs, "loss": loss}
            prepared = self.prepare(
                predictions, labels, **{name: optional[name] for name in self.takes}
            )
            if prepared is None:
                return
            arguments = _as_arguments(prepared)
            for metric in self.metrics:
                yield MetricUpdate(metric, [arguments] * len(_metrics_of(metric)))
            return

        if self.shift is not None:
            shift = self.shift
        if shift:
            predictions, labels = align_with_next_labels(predictions, labels)

        # Metrics of one family share their arguments.
        arguments_by_family: dict[str, Arguments] = {}
        for metric, families in zip(self.metrics, self._families, strict=True):
            for family in families:
                if family not in arguments_by_family:
                    arguments_by_family[family] = _counted_or_made_up(
                        *metric_inputs(family, predictions, labels)
                    )
            yield MetricUpdate(metric, [arguments_by_family[family] for family in families])


def as_batch_metrics(value: object) -> BatchMetrics:
    """Convert metrics to `BatchMetrics`."""
    if isinstance(value, BatchMetrics):
        return value
    return BatchMetrics(value)


def _as_arguments(prepared: object) -> Arguments:
    """Return the arguments that a `prepare` has returned: a dict, a tuple, or a single one."""
    if isinstance(prepared, Mapping):
        return Arguments((), dict(prepared))
    if isinstance(prepared, (tuple, list)):
        return Arguments(tuple(prepared), {})
    return Arguments((prepared,), {})


def _counted_or_made_up(predictions: torch.Tensor, labels: torch.Tensor) -> Arguments:
    """Return the arguments of `update` for predictions and labels.

    If no label counts, they are those of a made-up sample, which shows metrics the shapes.
    """
    if labels.numel():
        return Arguments((predictions, labels), {})
    label_shape = (*labels.shape[:-1], 1)
    sample = predictions.new_zeros((*label_shape, *predictions.shape[labels.ndim :]))
    return Arguments((sample, labels.new_zeros(label_shape)), {}, counts=False)


def _show_shapes(metric: object, arguments_of_metrics: list[Arguments]) -> None:
    """Put empty tensors into states that are lists, so that all ranks have the same states."""
    for part, arguments in zip(_metrics_of(metric), arguments_of_metrics, strict=True):
        if part.update_called:
            continue
        # A copy that is updated has tensors of the right shapes.
        example = part.clone()
        example.update(*arguments.positional, **arguments.keywords)
        for name, state in example.metric_state.items():
            if isinstance(state, list):
                empty = [row[:0] for row in state if isinstance(row, torch.Tensor) and row.ndim]
                setattr(part, name, empty)


def _metrics_of(metric: object) -> list[Any]:
    """Return the metrics of a collection, or the metric itself."""
    if isinstance(metric, MetricCollection):
        return list(metric.values(copy_state=False))
    return [metric]


@contextlib.contextmanager
def _synchronised_over(metric: object, process_group: Any) -> Iterator[None]:
    """Make metrics without a process group synchronise over this one within the `with` block.

    The group is removed afterwards, because metrics with a group cannot be copied.
    """
    without_group = [part for part in _metrics_of(metric) if part.process_group is None]
    for part in without_group:
        part.process_group = process_group
    try:
        yield
    finally:
        for part in without_group:
            part.process_group = None


def _named_values(name: str, metric: object, value: object) -> dict[str, Any]:
    """Return the value of a metric, or each of several values, by name."""
    if isinstance(value, Mapping):
        return {f"{name}_{key}" if name else str(key): part for key, part in value.items()}
    return {name or type(metric).__name__: value}


def _as_metric(name: str, value: object) -> Any:
    """Return a function as a metric; anything else is returned unchanged."""
    if callable(value) and not isinstance(value, (type, Metric, MetricCollection)):
        return FunctionMetric(value, name)
    return value


def _require_metrics(named: Mapping[str, object]) -> None:
    """Raise a TypeError for values that are not metrics, and for an empty dict."""
    wrong = [
        f"{name!r}: {_describe(metric)}" if name else _describe(metric)
        for name, metric in named.items()
        if not isinstance(metric, (Metric, MetricCollection))
    ]
    if wrong or not named:
        raise TypeError(
            f"metrics is {', '.join(wrong) or 'empty'}: expected is a torchmetrics Metric, a "
            "MetricCollection (also of a list), or a dict of them and of functions, "
            "{'accuracy': function}."
        )


def _describe(value: object) -> str:
    """Return the type of a value, or the name of a class, for an error."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return type(value).__name__


def _optional_parameters(prepare: Callable[..., object] | None) -> list[str]:
    """Return which of `inputs` and `loss` a `prepare` takes."""
    if prepare is None:
        return []
    parameters = inspect.signature(prepare).parameters
    any_keyword = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return [name for name in ("inputs", "loss") if any_keyword or name in parameters]
