"""Metrics of torchmetrics and plain functions, fed batch by batch and read by name.

`BatchMetrics` turns a batch into the arguments of any metrics, `StageMetrics` keeps a set for each
stage and loader of a LightningModule, `FunctionMetric` calls a function once with all of an
evaluation, `TokenLoss` and `TokenPerplexity` count each token the same over uneven batches and over
processes.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from numbers import Number
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..internals.lightning_import import torchmetrics
from .collecting import join_objects
from .metric_inputs import IGNORED, input_family, metric_inputs, shifted

Metric = torchmetrics.Metric
MetricCollection = torchmetrics.MetricCollection

LONGEST_VECTOR = 1000
"""Entries of a vector that are logged one by one: values of classes, not of samples."""


class Arguments(NamedTuple):
    """Arguments of `update`; `counts` is False where it shows shapes only."""

    positional: tuple[Any, ...]
    keywords: dict[str, Any]
    counts: bool = True


@contextlib.contextmanager
def metric_dtype() -> Iterator[None]:
    """Make new tensors in single precision, where those of the model are made in half precision.

    Sums in bfloat16 stop growing at 256 times what is added. In a step of `precision="bf16-true"`,
    and in `configure_model`, torch's default type is that of the model.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.promote_types(default, torch.float32))
    try:
        yield
    finally:
        torch.set_default_dtype(default)


class BatchMetrics(nn.Module):
    """Compute metrics batch by batch, by torchmetrics objects, which keep sums only, or functions.

    Works in `Trainer(compute_metrics=...)` and in `LossModule(metrics=...)`; both take the metrics
    without this class too, which is only needed to say how a batch becomes the arguments of
    `update`.

    Args:
        metrics: a `Metric`, a `MetricCollection`, or a dict of them and of functions. A metric is
            called as the dict calls it, by itself and in a collection by its class; a metric that
            computes several values gives each of them its name. Functions are called as
            `function(predictions, labels)`, see `FunctionMetric`.
        prepare: `prepare(predictions, labels)` returns the arguments of `update`: a tuple, a dict
            of keywords, or None where nothing is to be counted. It may also take `inputs`, the
            batch, and `loss`. By default predictions are taken for logits, and labels of -100 are
            left out; `metric_inputs.py` has the rule in full.
        shift: the label at a position belongs to the prediction one position earlier. By default so
            for causal language models.

    Raises:
        TypeError: something is neither a metric nor a function.
        ValueError: no rule says how logits and labels reach a metric, and there is no `prepare`.
    """

    def __init__(
        self, metrics: Any, prepare: Callable[..., Any] | None = None, *, shift: bool | None = None
    ) -> None:
        super().__init__()

        # Without a dict the values have the names of their classes.
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
                self._families.append([input_family(each_metric) for each_metric in _each(metric)])

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
            predictions: what the model returned beside the loss.
            labels: the labels, or None.
            inputs: the batch, for a `prepare` that takes it.
            loss: the loss of the batch, for a `prepare` that takes it.
            shift: whether the model is a causal one, where `self.shift` does not say.
        """
        for metric, all_arguments in self._arguments(
            predictions, labels, inputs=inputs, loss=loss, shift=shift
        ):
            first = all_arguments[0]
            if not all(arguments.counts for arguments in all_arguments):
                _show_shapes(metric, all_arguments)
            elif all(arguments is first for arguments in all_arguments):
                # As a whole, because a collection updates states that its metrics share only once.
                metric.update(*first.positional, **first.keywords)
            else:
                for each_metric, arguments in zip(_each(metric), all_arguments, strict=True):
                    each_metric.update(*arguments.positional, **arguments.keywords)

    @torch.no_grad()
    @metric_dtype()
    def update_without_counting(self, predictions: object, labels: object, **further: Any) -> None:
        """Show metrics what batches look like, see `update` for the arguments.

        For a process that has seen no sample: synchronisation needs states of the same shapes
        everywhere.
        """
        for metric, all_arguments in self._arguments(predictions, labels, **further):
            _show_shapes(metric, all_arguments)

    def compute(self, process_group: Any = None) -> dict[str, Any]:
        """Return the values by name, over all batches and processes: each process has to call this.

        Args:
            process_group: processes that saw different samples; by default all, or those that a
                metric names itself.
        """
        values: dict[str, Any] = {}
        for name, metric in zip(self.names, self.metrics, strict=True):
            with _synchronised_over(metric, process_group):
                values |= _named_values(name, metric, metric.compute())
        return values

    def value_names(self) -> list[str]:
        """Return the names of the values, as far as they are known before a metric is computed."""
        names: list[str] = []
        for name, metric in zip(self.names, self.metrics, strict=True):
            if isinstance(metric, MetricCollection):
                names += [f"{name}_{key}" if name else str(key) for key in metric]
            else:
                names.append(name or type(metric).__name__)
        return names

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> BatchMetrics:
        """Follow the model to another device, but not to another type, as in
        `module.to(torch.bfloat16)`.
        """

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(move, *args, **kwargs)

    def reset(self) -> None:
        """Forget all batches."""
        for metric in self.metrics:
            metric.reset()

    def _arguments(
        self,
        predictions: object,
        labels: object,
        *,
        inputs: object = None,
        loss: object = None,
        shift: bool = False,
    ) -> Iterator[tuple[Any, list[Arguments]]]:
        """Yield each metric or collection, with the arguments of the one metric, or of each in
        the collection.
        """
        if self.prepare is not None:
            optional = {"inputs": inputs, "loss": loss}
            prepared = self.prepare(
                predictions, labels, **{name: optional[name] for name in self.takes}
            )
            if prepared is None:
                return
            arguments = _as_arguments(prepared)
            for metric in self.metrics:
                yield metric, [arguments] * len(_each(metric))
            return

        if self.shift is not None:
            shift = self.shift
        if shift:
            predictions, labels = shifted(predictions, labels)

        # Metrics of one family share their arguments.
        arguments_by_family: dict[str, Arguments] = {}
        for metric, families in zip(self.metrics, self._families, strict=True):
            for family in families:
                if family not in arguments_by_family:
                    arguments_by_family[family] = _counted_or_made_up(
                        *metric_inputs(family, predictions, labels)
                    )
            yield metric, [arguments_by_family[family] for family in families]


def as_batch_metrics(value: object) -> BatchMetrics:
    """Convert metrics to `BatchMetrics`."""
    if isinstance(value, BatchMetrics):
        return value
    return BatchMetrics(value)


def _as_arguments(prepared: object) -> Arguments:
    if isinstance(prepared, Mapping):
        return Arguments((), dict(prepared))
    if isinstance(prepared, (tuple, list)):
        return Arguments(tuple(prepared), {})
    return Arguments((prepared,), {})


def _counted_or_made_up(predictions: torch.Tensor, labels: torch.Tensor) -> Arguments:
    """Return the arguments of `update`; if no label counts, those of a made-up sample, which shows
    metrics the shape of samples.
    """
    if labels.numel():
        return Arguments((predictions, labels), {})
    label_shape = (*labels.shape[:-1], 1)
    sample = predictions.new_zeros((*label_shape, *predictions.shape[labels.ndim :]))
    return Arguments((sample, labels.new_zeros(label_shape)), {}, counts=False)


def _show_shapes(metric: object, arguments_of_metrics: list[Arguments]) -> None:
    """Put empty tensors into states that are lists, so that all ranks have the same states."""
    for each_metric, arguments in zip(_each(metric), arguments_of_metrics, strict=True):
        if each_metric.update_called:
            continue
        example = each_metric.clone()
        example.update(*arguments.positional, **arguments.keywords)
        for name, state in example.metric_state.items():
            if isinstance(state, list):
                empty = [row[:0] for row in state if isinstance(row, torch.Tensor) and row.ndim]
                setattr(each_metric, name, empty)


def _each(metric: object) -> list[Any]:
    """Return the metrics of a collection, or the metric itself."""
    if isinstance(metric, MetricCollection):
        return list(metric.values(copy_state=False))
    return [metric]


@contextlib.contextmanager
def _synchronised_over(metric: object, process_group: Any) -> Iterator[None]:
    """Let metrics synchronise over these processes in the block, unless they name others.

    The group is removed afterwards, because metrics with a group cannot be copied.
    """
    unset = [each_metric for each_metric in _each(metric) if each_metric.process_group is None]
    for each_metric in unset:
        each_metric.process_group = process_group
    try:
        yield
    finally:
        for each_metric in unset:
            each_metric.process_group = None


def _named_values(name: str, metric: object, value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {f"{name}_{key}" if name else str(key): part for key, part in value.items()}
    return {name or type(metric).__name__: value}


def _as_metric(name: str, value: object) -> Any:
    if callable(value) and not isinstance(value, (type, Metric, MetricCollection)):
        return FunctionMetric(value, name)
    return value


def _require_metrics(named: Mapping[str, object]) -> None:
    wrong = [
        f"{name!r}: {_kind_of(metric)}" if name else _kind_of(metric)
        for name, metric in named.items()
        if not isinstance(metric, (Metric, MetricCollection))
    ]
    if wrong or not named:
        raise TypeError(
            f"metrics is {', '.join(wrong) or 'empty'}: expected is a torchmetrics Metric, a "
            "MetricCollection (also of a list), or a dict of them and of functions, "
            "{'accuracy': function}."
        )


def _kind_of(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return type(value).__name__


def _optional_parameters(prepare: Callable[..., object] | None) -> list[str]:
    if prepare is None:
        return []
    parameters = inspect.signature(prepare).parameters
    any_keyword = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return [name for name in ("inputs", "loss") if any_keyword or name in parameters]


class StageMetrics:
    """The metrics of training, validation and test: a separate copy for each stage and loader.

    Args:
        metrics: copied for each stage and loader; None for no metrics.
    """

    def __init__(self, metrics: BatchMetrics | None) -> None:
        self.metrics = metrics
        self._sets: dict[str, list[BatchMetrics]] = {}
        self._stages_with_batches: set[str] = set()

    def begin(self, stage: str, loaders: int, device: torch.device) -> None:
        """Reset the metrics of all loaders of a stage, on every rank, to be synchronised later."""
        self._stages_with_batches.discard(stage)
        if self.metrics is not None:
            # One for each loader, of which there may be more or fewer than before.
            sets = self._sets.setdefault(stage, [])
            sets += [copy.deepcopy(self.metrics) for _ in range(loaders - len(sets))]
            del sets[loaders:]
            for metrics in sets:
                metrics.to(device).reset()

    def update(
        self,
        stage: str,
        loader: int,
        predictions: object,
        labels: object,
        *,
        counts: bool = True,
        **further: Any,
    ) -> None:
        """Count a batch, see `BatchMetrics.update`; if no sample counts, only show its shape.

        A no-op if the stage has not begun: Lightning's `Tuner` trains without callbacks, so that
        nothing calls `begin`, and nothing is logged.
        """
        sets = self._sets.get(stage, [])
        if loader >= len(sets):
            return
        self._stages_with_batches.add(stage)
        metrics = sets[loader]
        update = metrics.update if counts else metrics.update_without_counting
        update(predictions, labels, **further)

    def take(self, stage: str, process_group: object = None) -> list[dict[str, Any]]:
        """Return the values of each loader by name, see `BatchMetrics.compute`, and reset the
        metrics.

        There are no values without a batch: when a training resumes after the last batch of an
        epoch, for instance.
        """
        if stage not in self._stages_with_batches:
            return []
        self._stages_with_batches.discard(stage)
        values = []
        for metrics in self._sets.get(stage, []):
            values.append(metrics.compute(process_group))
            metrics.reset()
        return values


def name_in_stage(stage: str, name: str, loaders: object, index: int, separator: str = "_") -> str:
    """Name a value: `val_loss`, `val_<loader>_loss` in a dict of loaders, with Lightning's suffix
    in a list.

    Args:
        stage: train, val or test.
        name: the name of the value.
        loaders: the loaders of the trainer for this stage.
        index: the index of the loader.
        separator: after the stage; "/" gives `val/loss` and `val/<loader>_loss`.
    """
    if isinstance(loaders, Mapping):
        return f"{stage}{separator}{list(loaders)[index]}_{name}"
    has_suffix = isinstance(loaders, (list, tuple)) and len(loaders) > 1
    if has_suffix:
        return f"{stage}{separator}{name}/dataloader_idx_{index}"
    return f"{stage}{separator}{name}"


def as_numbers(name: str, value: object) -> dict[str, Any]:
    """Convert a value of a metric to numbers for a logger.

    Args:
        name: the name of the value.
        value: the value that a metric computed.

    Returns:
        A number under its name; the entries of a vector, such as values of classes, as `<name>_0`,
        `<name>_1`, ...; nothing of a confusion matrix, or of a vector with more than
        `LONGEST_VECTOR` entries.
    """
    if isinstance(value, Number) or (isinstance(value, Tensor) and value.numel() == 1):
        return {name: value}
    if isinstance(value, Tensor) and value.ndim == 1 and len(value) <= LONGEST_VECTOR:
        return {f"{name}_{index}": entry for index, entry in enumerate(value)}
    return {}


class FunctionMetric(torchmetrics.Metric):
    """Call a function once with the predictions and labels of all batches, of all processes, as
    tensors.

    Everything is kept on the device until then. Rows of different lengths are padded with -100 on
    the right. With several processes the samples are in another order than in the dataset.

    Args:
        function: `function(predictions, labels)` returns a number, a tensor with one, or a dict of
            them.
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
        """Make an empty metric with the same function, because copying a method would also copy
        its object.
        """
        return FunctionMetric(self.function, self.name)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Keep a batch."""
        self.preds.append(preds.detach())
        self.target.append(target.detach())

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Gather one tensor a process: their batches may differ in number."""
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
    """Return the tensor of a state, which is a list of batches before torchmetrics has
    synchronised it.
    """
    if isinstance(state, list) and state:
        return join_objects(state)
    return state


class TokenLoss(torchmetrics.Metric):
    """Compute the mean cross entropy of all labels that are not -100, each with the same weight.

    `eval_loss` is the mean of the losses of the batches, each repeated for its samples, as the
    reference has it: tokens in batches with few of them count more. Here losses and tokens are
    summed up, over all batches and processes.

    Args:
        ignore_index: labels that do not count.
        dtype: the dtype of the sum; `torch.float32` for devices that know no other, as MPS.
        kwargs: the keyword arguments of `torchmetrics.Metric`.
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    total: Tensor
    tokens: Tensor

    def __init__(
        self, ignore_index: int = IGNORED, dtype: torch.dtype = torch.float64, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.ignore_index = ignore_index
        self.add_state("total", torch.zeros((), dtype=dtype, device="cpu"), dist_reduce_fx="sum")
        self.add_state(
            "tokens", torch.zeros((), dtype=torch.int64, device="cpu"), dist_reduce_fx="sum"
        )

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch.

        Args:
            preds: logits, shape (..., classes).
            target: class numbers, shape (...): the label of each position, shifted already where
                that is needed.

        Raises:
            ValueError: the shapes do not go together.
        """
        if preds.shape[:-1] != target.shape:
            raise ValueError(
                f"{type(self).__name__}: logits of {tuple(preds.shape)} do not fit labels of "
                f"{tuple(target.shape)}."
            )
        logits = preds.flatten(0, -2)
        labels = target.flatten()

        # Half precision has too few digits for the logarithm of a probability.
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        losses = functional.cross_entropy(
            logits, labels, ignore_index=self.ignore_index, reduction="none"
        )
        self.total += losses.sum(dtype=self.total.dtype)
        self.tokens += (labels != self.ignore_index).sum()

    def compute(self) -> Tensor:
        """Nats per token; NaN if there was none."""
        return self.total / self.tokens


class TokenPerplexity(TokenLoss):
    """Compute the perplexity: the exponential of `TokenLoss`.

    Works like `torchmetrics.text.Perplexity`, but summed in double precision.

    Args:
        ignore_index: labels that do not count.
        dtype: the dtype of the sum; `torch.float32` for devices that know no other, as MPS.
        kwargs: the keyword arguments of `torchmetrics.Metric`.
    """

    def compute(self) -> Tensor:
        """Return the perplexity of the labels; NaN if there are none."""
        return super().compute().exp()
