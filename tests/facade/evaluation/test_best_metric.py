"""An evaluation without the loss or the metric that it is judged by says what was looked for,
and what to set.
"""

import pytest
import torch
from torchmetrics.classification import MulticlassAccuracy

from helpers.trainer.tiny_trainings import make_trainer, points, tiny, trained_trainer

BEST = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}


def renamed(count=8):
    return [
        {"x": item["x"], "target": item["labels"], "note": torch.tensor(0)}
        for item in points(count)
    ]


def message(made):
    with pytest.raises(KeyError) as error:
        made._determine_best_metric(made.evaluate(), trial=None)
    return str(error.value)


def assert_says(text, *parts):
    assert [part for part in parts if part not in text] == [], text


def test_labels_by_another_name(tmp_path):
    """The error names the model's arguments, the columns, the assumed labels, and the remedy."""
    trainer = make_trainer(tmp_path, **BEST, eval_dataset=renamed())
    text = message(trainer)
    assert_says(
        text,
        "`metric_for_best_model` training argument is set to 'eval_loss'",
        "Tiny takes: x, labels.",
    )
    assert_says(text, "A batch has: x.", "label_names=['labels']", "remove_unused_columns=True")
    assert not text.startswith(("'", '"')), "as a sentence, not as a KeyError shows its key"


METRICS = {
    "a function": (
        lambda p: {"accuracy": 1.0},
        {},
        ["eval_accuracy", "Pass a compute_metrics that returns 'f1'"],
    ),
    "torchmetrics": ({"f1_score": MulticlassAccuracy(3)}, {}, ["Did you mean 'eval_f1_score'?"]),
    "several datasets": (
        lambda p: {"f1": 1.0},
        {"eval_dataset": {"a": points(4)}},
        ["eval_<dataset>_<m", "eval_a_f1"],
    ),
}


@pytest.mark.parametrize("name", METRICS)
def test_best_metric_that_is_not_computed(tmp_path, name):
    metrics, changes, parts = METRICS[name]
    trainer = make_trainer(
        tmp_path, **BEST, metric_for_best_model="f1", compute_metrics=metrics, **changes
    )
    assert_says(message(trainer), "set to 'eval_f1'", "the evaluation metrics: eval_", *parts)


def test_metrics_that_were_not_computed_are_told_once(tmp_path, caplog):
    """The reference says nothing; a sample more is not read for it, for that may draw random
    numbers.
    """
    read = []
    cls = type(
        "Reading",
        (list,),
        {"__getitem__": lambda self, n: (read.append(n), list.__getitem__(self, n))[1]},
    )
    data = cls(renamed())
    trainer = make_trainer(tmp_path, compute_metrics=lambda prediction: {}, eval_dataset=data)
    trainer.evaluate()
    trainer.evaluate()
    (record,) = [
        record
        for record in caplog.records
        if "compute_metrics was not called" in record.getMessage()
    ]
    assert_says(
        record.getMessage(), "takes: x, labels", "A batch has: x.", "label_names=['labels']"
    )
    assert read.count(0) == 2


@pytest.mark.parametrize("only_loss", [False, True])
def test_best_metric_warns_once_of_an_empty_evaluation(tmp_path, caplog, only_loss):
    """Without compute_metrics too: what label_names is, what a batch has, and what to set."""
    trainer = trained_trainer(
        tmp_path, label_names=["lables"], prediction_loss_only=only_loss, eval_strategy="epoch"
    )
    metrics = trainer.evaluate()
    trainer.predict(points(4))
    assert "eval_loss" not in metrics
    (text,) = [record.getMessage() for record in caplog.records]
    assert_says(text, "label_names=['lables']", "A batch has: x, labels")
    caplog.clear()
    assert make_trainer(tmp_path).evaluate()["eval_loss"] > 0
    # predictions are made without labels
    make_trainer(tmp_path, label_names=["lables"]).predict(points(4))
    assert not caplog.records


@pytest.mark.parametrize("bad_at", [(1, 2), (1,), ()], ids=["always nan", "once nan", "never nan"])
def test_best_metric_nan_is_never_the_best(tmp_path, caplog, bad_at):
    """A warning comes with the first one, and at the end if no best model can be loaded."""
    evaluations = []

    def compute(prediction):
        evaluations.append(len(evaluations) + 1)
        return {"quality": float("nan") if evaluations[-1] in bad_at else 0.5}

    options = {
        **BEST,
        "metric_for_best_model": "quality",
        "num_train_epochs": 2,
        "compute_metrics": compute,
    }
    trainer = trained_trainer(tmp_path, **options)
    messages = [record.getMessage() for record in caplog.records]
    first = [
        text for text in messages if "metric_for_best_model='quality' is nan at step 4" in text
    ]
    last = [text for text in messages if "load_best_model_at_end=True, but" in text]
    assert len(first) == bool(bad_at)
    assert len(last) == (len(bad_at) == 2)
    assert (trainer.state.best_model_checkpoint is None) == (len(bad_at) == 2)
    assert all("quality was nan" in text for text in last)


def test_best_metric_without_an_evaluation_has_no_best_model(tmp_path, caplog):
    steps = {
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "eval_steps": 50,
        "save_steps": 50,
    }
    make_trainer(tmp_path, load_best_model_at_end=True, **steps).train()
    assert (
        "load_best_model_at_end=True, but there was no evaluation in 4 steps: the last model is "
        "kept." in caplog.text
    )


WATCHED = {
    "eval_loss": {},
    "eval_mean_loss": {"eval_dataset": {"a": points(4), "b": points(6)}, "eval_aggregate": "mean"},
    "eval_b_loss": {
        "eval_dataset": {"a": points(4), "b": points(6)},
        "metric_for_best_model": "b_loss",
    },
}


@pytest.mark.parametrize("name", WATCHED)
def test_best_metric_plateau_object_follows_the_loss_by_default(tmp_path, name):
    """As `lr_scheduler_type="reduce_lr_on_plateau"`: one step of the schedule an evaluation."""
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    trainer = make_trainer(
        tmp_path,
        model=model,
        optimizers=(optimizer, schedule),
        eval_strategy="epoch",
        **WATCHED[name],
    )
    trainer.train()
    (evaluated,) = [entry[name] for entry in trainer.state.log_history if name in entry]
    assert (schedule.last_epoch, schedule.best) == (1, evaluated)
