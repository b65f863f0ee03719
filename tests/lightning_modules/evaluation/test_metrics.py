"""torchmetrics objects under one roof: names, one set of inputs for each kind, nothing kept."""

import copy

import numpy as np
import pytest
import torch
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics import classification as of

from lightrainer.lightning_modules.evaluation.metrics import BatchMetrics
from lightrainer.lightning_modules.evaluation.stage_metrics import as_numbers
from lightrainer.lightning_modules.evaluation.token_metrics import TokenLoss

CLASSES = 3


def batch(count=6, seed=1):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, CLASSES, generator=generator)
    return logits, (torch.arange(count) * 2 + seed) % CLASSES


def updated(metrics, *batches, **further):
    for arguments in batches or [batch()]:
        metrics.update(*arguments, **further)
    return metrics


class Pair(Metric):
    """Computes several values."""

    full_state_update = False

    def __init__(self):
        super().__init__()
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, preds, target):
        self.count += len(target)

    def compute(self):
        return {"one": self.count, "two": 2 * self.count}


NAMES = {
    "a metric": (lambda: of.MulticlassAccuracy(CLASSES), ["MulticlassAccuracy"]),
    "several values": (Pair, ["one", "two"]),
    "a collection": (
        lambda: MetricCollection([of.MulticlassAccuracy(CLASSES), TokenLoss()]),
        ["MulticlassAccuracy", "TokenLoss"],
    ),
    "a named collection": (
        lambda: MetricCollection({"a": of.MulticlassAccuracy(CLASSES), "b": Pair()}, prefix="my_"),
        ["my_a", "my_one", "my_two"],
    ),
    "a dict": (
        lambda: {"pair": Pair(), "all": MetricCollection([TokenLoss()]), "keys": TokenLoss()},
        ["pair_one", "pair_two", "all_TokenLoss", "keys"],
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_metrics_have_the_names_of_the_dict_or_the_class(name):
    """As the dict calls them, by itself and in a collection by the class."""
    make, names = NAMES[name]
    assert sorted(updated(BatchMetrics(make())).compute()) == sorted(names)


def test_values_are_those_of_the_metrics():
    kinds = {
        "acc": of.MulticlassAccuracy(CLASSES),
        "auroc": of.MulticlassAUROC(CLASSES),
        "loss": TokenLoss(),
    }
    metrics = BatchMetrics(kinds)
    batches = [batch(5, 1), batch(4, 2), batch(1, 3)]
    logits, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    values = updated(
        metrics, *((rows.clone().requires_grad_(), targets) for rows, targets in batches)
    ).compute()
    assert not values["loss"].requires_grad
    assert torch.allclose(values["acc"], of.MulticlassAccuracy(CLASSES)(logits, labels))
    assert torch.allclose(values["auroc"], of.MulticlassAUROC(CLASSES)(logits.softmax(-1), labels))
    metrics.reset()
    assert torch.allclose(
        updated(metrics, batches[1]).compute()["acc"], of.MulticlassAccuracy(CLASSES)(*batches[1])
    )


def test_metrics_collection_updates_each_group_once():
    """Accuracy and F1 have the same sums, so that torchmetrics counts for both at once."""
    collection = MetricCollection([of.MulticlassAccuracy(CLASSES), of.MulticlassF1Score(CLASSES)])
    updated(BatchMetrics(collection), batch(9, 1), batch(9, 2))
    assert len(collection.compute_groups) == 1
    # Of several kinds each gets its own form of the batch.
    kinds = [of.MulticlassAccuracy(CLASSES), of.MulticlassAUROC(CLASSES), TokenLoss()]
    values = updated(BatchMetrics(MetricCollection(kinds))).compute()
    logits, labels = batch()
    assert torch.allclose(
        values["MulticlassAUROC"], of.MulticlassAUROC(CLASSES)(logits.softmax(-1), labels)
    )
    assert torch.allclose(
        values["TokenLoss"].float(), torch.nn.functional.cross_entropy(logits, labels)
    )


@pytest.mark.parametrize(
    ("prepare", "kind"),
    [
        (lambda predictions, labels: (predictions.argmax(-1), labels), "tuple"),
        (lambda predictions, labels: {"preds": predictions.argmax(-1), "target": labels}, "dict"),
        (lambda predictions, labels, inputs: (inputs["own"], labels), "with inputs"),
        (lambda predictions, labels, **further: (further["inputs"]["own"], labels), "with all"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_metrics_prepare_function(prepare, kind):
    logits, labels = batch()
    metrics = BatchMetrics(of.MulticlassAccuracy(CLASSES), prepare)
    metrics.update(logits, labels, inputs={"own": logits.argmax(-1)}, loss=torch.tensor(1.0))
    assert metrics.compute()["MulticlassAccuracy"] == of.MulticlassAccuracy(CLASSES)(logits, labels)


def test_metrics_function_may_return_one_value_or_none():
    metrics = BatchMetrics(
        MeanMetric(), lambda predictions, labels, loss: loss if loss < 5 else None
    )
    for loss in (1.0, 2.0, 9.0):
        metrics.update(None, None, loss=torch.tensor(loss))
    assert metrics.compute()["MeanMetric"] == 1.5


@pytest.mark.parametrize(
    ("own", "told", "expected"),
    [(None, False, 0), (None, True, 1), (True, False, 1), (False, True, 0)],
)
def test_labels_of_the_next_token(own, told, expected):
    """Attributes of the metrics take precedence over those of the model."""
    labels = torch.tensor([[0, 1, 2, 0, 1]])
    # each position says the next one
    logits = torch.nn.functional.one_hot(labels.roll(-1, 1), CLASSES).float()
    metrics = BatchMetrics(of.MulticlassAccuracy(CLASSES, average="micro"), shift=own)
    metrics.update(logits, labels, shift=told)
    assert metrics.compute()["MulticlassAccuracy"] == expected


def test_labels_of_a_model_with_virtual_tokens():
    """The last virtual token says the first label."""
    labels = torch.tensor([[0, 1, 2, 0]])
    logits = torch.nn.functional.one_hot(torch.tensor([[2, 0, 1, 2, 0, 1]]), CLASSES).float()
    metrics = BatchMetrics(of.MulticlassAccuracy(CLASSES, average="micro"))
    metrics.update(logits, labels, shift=True)
    assert metrics.compute()["MulticlassAccuracy"] == 1


def test_batches_in_which_no_label_counts():
    """Results stay the same; in a collection they also do not decide which metrics count
    together.
    """
    nothing = (batch()[0], torch.full((6,), -100))
    for make in (
        lambda: of.MulticlassAccuracy(CLASSES),
        lambda: MetricCollection([of.MulticlassPrecision(CLASSES), of.MulticlassAUROC(CLASSES)]),
        lambda: MetricCollection(
            {"1": of.MulticlassAccuracy(CLASSES), "2": of.MulticlassAccuracy(CLASSES, top_k=2)}
        ),
    ):
        with_them, without = BatchMetrics(make()), BatchMetrics(make())
        updated(with_them, nothing, nothing, batch(9, 2), nothing, batch(3, 4))
        updated(without, batch(9, 2), batch(3, 4))
        assert with_them.compute() == without.compute()


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (3, "metrics is int"),
        ({"a": of.BinaryAccuracy(), "b": "len"}, "metrics is 'b': str"),
        ({}, "metrics is empty"),
        (of.BinaryAccuracy, "metrics is the class BinaryAccuracy"),
    ],
)
def test_batch_metrics_refuse_what_is_not_a_metric(metrics, message):
    with pytest.raises(TypeError, match=message):
        BatchMetrics(metrics)


class Judge:
    """Counts how often it is asked, and cannot be copied."""

    calls = 0

    def __deepcopy__(self, memo):
        raise AssertionError("copied")

    def f1(self, predictions, labels):
        self.calls += 1
        return of.MulticlassF1Score(CLASSES)(predictions, labels)


def test_metrics_function_receives_all_batches_at_once():
    """The loss need not be a mean over samples; labels of -100, gradients and earlier batches
    are left out.
    """
    batches = [batch(5, 1), batch(4, 2), (batch()[0], torch.full((6,), -100)), batch(1, 3)]
    logits, labels = (torch.cat(parts) for parts in zip(*batches[:2], batches[3], strict=True))
    judge = Judge()
    metrics = copy.deepcopy(
        BatchMetrics({"f1": judge.f1, "many": lambda *given: {"rows": np.int64(len(given[1]))}})
    )
    for _ in range(2):
        updated(metrics, *((rows.requires_grad_(), targets) for rows, targets in batches))
        values = metrics.compute()
        assert values == {"f1": of.MulticlassF1Score(CLASSES)(logits, labels), "many_rows": 10}
        assert not values["f1"].requires_grad
        assert all(as_numbers(name, value) == {name: value} for name, value in values.items()), (
            "each is one number"
        )
        metrics.reset()
    assert judge.calls == 2
    updated(metrics, batches[2])
    with pytest.warns(UserWarning, match="called before the ``update`` method"):
        assert np.isnan(metrics.compute()["f1"])
    assert judge.calls == 2, "it is not called with nothing"
    apart = [float(of.MulticlassF1Score(CLASSES)(*pair)) for pair in batches[:2] + batches[3:]]
    assert sum(apart) / 3 != pytest.approx(float(values["f1"])), (
        "the mean over batches is another number"
    )


def test_rows_of_several_lengths_and_processes_reach_a_function():
    received = []
    rows = BatchMetrics(
        {"rows": lambda *given: received.extend(given)},
        lambda predictions, labels: (predictions, labels),
    )
    metric = rows.metrics[0]
    updated(rows, (torch.ones(1, 2), torch.ones(1)), (torch.ones(1, 3), torch.ones(1)))
    other = {2: torch.ones(2, 4), 1: torch.ones(2)}
    metric.dist_sync_fn = lambda kept, group: [kept, other[kept.ndim]]
    metric.distributed_available_fn = lambda: True
    rows.compute()
    assert [(tensor == 1).sum(-1).tolist() for tensor in received] == [[2, 3, 4, 4], 4]
    assert (received[0] == -100).sum() == 3
