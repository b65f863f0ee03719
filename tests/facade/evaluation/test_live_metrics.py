"""`compute_metrics` made of torchmetrics objects: exact, logged by name, in memory that does not
grow with the data.
"""

import gc
import json
import weakref

import numpy as np
import pytest
import torch
import torchmetrics
from torch import nn
from torch.nn import functional
from torch.utils.data import IterableDataset
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

from helpers.trainer.tiny_trainings import (
    At,
    make_trainer,
    points,
    trained_trainer,
    with_trainer_in_callbacks,
)
from lightrainer import BatchMetrics, TokenLoss, TokenPerplexity


def accuracy():
    return MulticlassAccuracy(3, average="micro")


def by_hand(prediction):
    return {
        "accuracy": float(
            (np.argmax(prediction.predictions, axis=-1) == prediction.label_ids).mean()
        )
    }


def share_of_hits(logits, labels):
    return (logits.argmax(-1) == labels).cpu().numpy().mean(dtype=np.float32)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(points(7, seed=2))


class Counting(Metric):
    """Records its calls, and counts rows."""

    full_state_update = False

    def __init__(self, log):
        super().__init__()
        self.log = log
        self.add_state("rows", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, preds, target):
        self.rows += len(target)
        self.log.append("update")

    def compute(self):
        self.log.append("compute")
        return self.rows

    def reset(self):
        super().reset()
        getattr(self, "log", []).append("reset")


METRICS = [
    (accuracy, "eval_MulticlassAccuracy"),
    (lambda: BatchMetrics({"accuracy": accuracy()}), "eval_accuracy"),
    (
        lambda: {"all": MetricCollection([accuracy(), MulticlassF1Score(3)])},
        "eval_all_MulticlassAccuracy",
    ),
    (lambda: {"accuracy": share_of_hits}, "eval_accuracy"),
]


@pytest.mark.parametrize(
    ("metrics", "name"),
    METRICS,
    ids=["a metric", "our own class", "a dict of collections", "a dict of functions"],
)
@pytest.mark.parametrize(
    "dataset", [lambda: points(6, seed=2), Stream], ids=["6 samples", "a stream of 7"]
)
def test_live_metrics_equal_a_function(tmp_path, metrics, name, dataset):
    """The last batch is shorter; in `evaluate`, in the logs, and in `predict`, which also has
    the arrays.
    """
    function = make_trainer(tmp_path, compute_metrics=by_hand, eval_dataset=dataset())
    trainer = make_trainer(tmp_path, compute_metrics=metrics(), eval_dataset=dataset())
    expected = function.evaluate()
    actual = trainer.evaluate()
    assert actual[name] == pytest.approx(expected["eval_accuracy"])
    assert type(actual[name]) is float
    assert actual["eval_loss"] == expected["eval_loss"]
    assert trainer.state.log_history[-1][name] == actual[name]
    prediction, arrays = trainer.predict(dataset()), function.predict(dataset())
    assert prediction.metrics[name.replace("eval", "test")] == actual[name]
    assert np.array_equal(prediction.predictions, arrays.predictions)
    assert np.array_equal(prediction.label_ids, arrays.label_ids)


def test_live_metrics_of_each_dataset(tmp_path):
    """Begun and left empty, so that neither the dataset before nor the epoch before counts."""
    log = []
    sets = {"a": points(6, seed=2), "b": points(5, seed=3)}
    trainer = make_trainer(tmp_path, compute_metrics=Counting(log), eval_dataset=sets)
    for _ in range(2):
        metrics = trainer.evaluate()
        assert (metrics["eval_a_Counting"], metrics["eval_b_Counting"]) == (6, 5)
    assert trainer.evaluate("b")["eval_Counting"] == 5
    assert log.count("compute") == 5
    assert log[-1] == "reset"
    assert trainer.compute_metrics.rows == 0


def test_live_metrics_failed_evaluation_leaves_nothing(tmp_path):
    broken = [*points(6, seed=2), {"x": torch.zeros(9), "labels": torch.tensor(0)}]
    trainer = make_trainer(tmp_path, compute_metrics=Counting([]), per_device_eval_batch_size=1)
    with pytest.raises(RuntimeError):
        trainer.evaluate(broken)
    assert trainer.evaluate()["eval_Counting"] == 6


class Watched(nn.Module):
    """Remembers its logits, as long as they are referenced elsewhere."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.logits = []

    def forward(self, x, labels=None):
        logits = self.layer(x)
        self.logits.append(weakref.ref(logits))
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize(
    ("metrics", "kept"), [(accuracy, 0), (lambda: by_hand, 4)], ids=["metrics", "a function"]
)
def test_predictions_are_not_kept(tmp_path, metrics, kept):
    """No tensor, and no array: the collectors are empty at the last batch. With a function they
    are not.
    """
    alive = []

    def look(of, state, control):
        gc.collect()
        alive.append(sum(ref() is not None for ref in of.model.logits[:-1]))

    looking = At("on_prediction_step", look)
    options = {"compute_metrics": metrics(), "callbacks": [looking], "eval_accumulation_steps": 1}
    trainer = with_trainer_in_callbacks(make_trainer(tmp_path, model=Watched(), **options))
    output = trainer.evaluation_loop(trainer.get_eval_dataloader(points(20)), "Evaluation")
    assert alive == [0] * 5  # a function's are copied
    assert (output.predictions is None) == (kept == 0)
    assert (output.label_ids is None) == (kept == 0)


def test_training_with_them_is_training_without(tmp_path):
    """Updates draw no random number and leave the model and its gradients alone."""
    trainers = []
    for metrics in (by_hand, {"accuracy": accuracy(), "loss_by_token": TokenLoss()}):
        trainer = trained_trainer(
            tmp_path,
            compute_metrics=metrics,
            eval_strategy="steps",
            eval_steps=2,
            num_train_epochs=2,
        )
        trainers.append(trainer)
    for name in ("loss", "grad_norm", "eval_loss"):
        left, right = (
            [e[name] for e in trainer.state.log_history if name in e] for trainer in trainers
        )
        assert left == right


def test_live_metrics_log_vectors_as_lists(tmp_path):
    trainer = trained_trainer(
        tmp_path,
        compute_metrics=MulticlassConfusionMatrix(3),
        eval_strategy="epoch",
        save_strategy="epoch",
    )
    matrix = trainer.state.log_history[-2]["eval_MulticlassConfusionMatrix"]
    assert np.array(matrix).shape == (3, 3)
    assert np.sum(matrix) == 6
    saved = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    assert saved["log_history"][-1]["eval_MulticlassConfusionMatrix"] == matrix


def test_live_metrics_prepare_function(tmp_path):
    """`prepare` may also take the batch, on the device, and its loss; missing labels are None."""
    calls = []

    def prepare(predictions, labels, inputs, loss):
        calls.append(
            (
                predictions.shape,
                None if labels is None else labels.shape,
                sorted(inputs),
                loss is None,
            )
        )
        return (predictions[:, 0],)

    metrics = BatchMetrics({"mean": torchmetrics.MeanMetric()}, prepare)
    trainer = make_trainer(tmp_path, compute_metrics=metrics)
    prediction = trainer.predict(points(6))
    assert prediction.metrics["test_mean"] == pytest.approx(prediction.predictions[:, 0].mean())
    trainer.predict([{"x": item["x"]} for item in points(3)])
    assert calls[-1] == ((3, 3), None, ["x"], True)
    assert calls[0] == ((4, 3), (4,), ["labels", "x"], False)


class TokensForCausalLM(nn.Module):
    """A causal language model by name."""

    def __init__(self):
        super().__init__()
        self.head = nn.Embedding(11, 11)

    def forward(self, input_ids, labels=None):
        logits = self.head(input_ids)
        loss = functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100
        )
        return {"loss": loss, "logits": logits}


def sentences():
    """Of different lengths, so that `eval_loss`, a mean over batches, is not the mean over
    tokens.
    """
    generator = torch.Generator().manual_seed(5)
    sequences = [torch.randint(11, (length,), generator=generator) for length in (9, 9, 2, 3, 5)]
    return [{"input_ids": ids, "labels": ids.clone()} for ids in sequences]


def pad(items):
    fill = {"input_ids": 0, "labels": -100}
    rows = {name: [item[name] for item in items] for name in fill}
    return {
        n: nn.utils.rnn.pad_sequence(rows[n], batch_first=True, padding_value=fill[n]) for n in fill
    }


def test_live_metrics_token_loss_of_a_language_model(tmp_path):
    """Labels are shifted for causal models, which is seen by their name."""
    torch.manual_seed(0)
    model = TokensForCausalLM()
    metrics = {"token_loss": TokenLoss(), "perplexity": TokenPerplexity()}
    trainer = make_trainer(
        tmp_path,
        model=model,
        compute_metrics=metrics,
        data_collator=pad,
        per_device_eval_batch_size=2,
    )
    actual = trainer.evaluate(sentences())
    with torch.no_grad():
        logits = torch.cat(
            [model.head(item["input_ids"].to(trainer.args.device))[:-1] for item in sentences()]
        ).cpu()
    labels = torch.cat([item["labels"][1:] for item in sentences()])
    expected = functional.cross_entropy(logits.double(), labels).item()
    assert actual["eval_token_loss"] == pytest.approx(expected, rel=1e-5)
    assert actual["eval_perplexity"] == pytest.approx(np.exp(expected), abs=1e-5)
    assert abs(actual["eval_loss"] - expected) > 1e-3, (
        "negative control: batches of few tokens count as much as others"
    )
    other = make_trainer(
        tmp_path,
        model=model,
        compute_metrics=BatchMetrics(TokenLoss(), shift=False),
        data_collator=pad,
    )
    assert abs(other.evaluate(sentences())["eval_TokenLoss"] - expected) > 1e-3


METRICS_AND_ARGUMENTS = [
    ([], {}, TypeError, "compute_metrics .*list"),
    (
        torchmetrics.MeanMetric(),
        {},
        ValueError,
        "MeanMetric does not take logits and labels.*prepare",
    ),
    (
        MulticlassAccuracy(3),
        {"include_for_metrics": ["loss"]},
        ValueError,
        "include_for_metrics.*prepare",
    ),
]


@pytest.mark.parametrize(("metrics", "arguments", "error", "message"), METRICS_AND_ARGUMENTS)
def test_live_metrics_that_cannot_be_are_refused_at_once(
    tmp_path, metrics, arguments, error, message
):
    with pytest.raises(error, match=message):
        make_trainer(tmp_path, compute_metrics=metrics, **arguments)
