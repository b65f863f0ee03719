"""Several sets by name: metrics of each, aggregates that choose the best model, and a collator
for evaluations.
"""

import math

import numpy as np
import pytest
import torch
from torchmetrics.classification import MulticlassAccuracy

from helpers.trainer.plain_seq2seq import pad, pairs, seq2seq_trainer
from helpers.trainer.tiny_trainings import (
    losses,
    make_trainer,
    points,
    tiny,
    trained_trainer,
    weights,
)
from lightrainer import EarlyStoppingCallback, default_data_collator

SETS = {"a": points(6, seed=2), "b": points(5, seed=3), "c": points(4, seed=4)}


def first(prediction):
    return {"count": float(len(prediction.label_ids))}


def test_eval_sets_have_separate_metrics(tmp_path):
    """Functions and torchmetrics side by side; a set without a name in the dict has its loss,
    and no predictions.
    """
    metrics = {"a": first, "b": {"accuracy": MulticlassAccuracy(3)}}
    trainer = make_trainer(tmp_path, eval_dataset=SETS, compute_metrics=metrics)
    results = trainer.evaluate()
    named = {name for name in results if name.endswith(("loss", "count", "accuracy"))}
    assert named == {
        "eval_a_loss",
        "eval_a_count",
        "eval_b_loss",
        "eval_b_accuracy",
        "eval_c_loss",
    }
    assert results["eval_a_count"] == 6
    assert trainer.evaluate("a")["eval_count"] == 6
    assert trainer.evaluate({"a": points(3)})["eval_a_count"] == 3
    assert "test_count" not in trainer.predict(points(3)).metrics
    assert trainer.compute_metrics is metrics


def test_eval_sets_dict_without_set_names_is_of_metrics(tmp_path):
    trainer = make_trainer(
        tmp_path, eval_dataset=SETS, compute_metrics={"accuracy": MulticlassAccuracy(3)}
    )
    assert {f"eval_{name}_accuracy" for name in SETS} <= trainer.evaluate().keys()


@pytest.mark.parametrize(
    ("kind", "function"), [("mean", np.mean), ("median", np.median), ("max", max)]
)
def test_eval_sets_aggregate_is_over_common_metrics(tmp_path, kind, function):
    trainer = make_trainer(
        tmp_path, eval_dataset=SETS, compute_metrics={"a": first}, eval_aggregate=kind
    )
    metrics = trainer.evaluate()
    assert metrics[f"eval_{kind}_loss"] == pytest.approx(
        function([metrics[f"eval_{name}_loss"] for name in SETS])
    )
    assert [name for name in metrics if f"_{kind}_" in name] == [f"eval_{kind}_loss"]
    assert trainer.state.log_history[-1][f"eval_{kind}_loss"] == metrics[f"eval_{kind}_loss"]


def test_nan_in_one_set_is_nan_in_all(tmp_path):
    metrics = dict.fromkeys(
        SETS, lambda prediction: {"good": math.nan if len(prediction.label_ids) == 5 else 1.0}
    )
    trainer = make_trainer(
        tmp_path, eval_dataset=SETS, compute_metrics=metrics, eval_aggregate="max"
    )
    assert math.isnan(trainer.evaluate()["eval_max_good"])


def test_mean_of_sets_chooses_the_best_model_stops_early_and_leads_the_schedule(tmp_path, caplog):
    """The means are 0.5, 0.6, 0.4 and 0.3: the second is the best, and the patience of two ends
    the training.
    """
    values = iter([0.4, 0.6, 0.9, 0.3, 0.1, 0.7, 0.3, 0.3])

    def good(prediction):
        return {"good": next(values)}

    trainer = make_trainer(
        tmp_path,
        eval_dataset={"a": SETS["a"], "b": SETS["b"]},
        compute_metrics={"a": good, "b": good},
        callbacks=[EarlyStoppingCallback(2)],
        **{
            "eval_strategy": "epoch",
            "save_strategy": "best",
            "load_best_model_at_end": True,
            "num_train_epochs": 9,
        },
        **{
            "eval_aggregate": "mean",
            "metric_for_best_model": "mean_good",
            "lr_scheduler_type": "reduce_lr_on_plateau",
        },
    )
    trainer.train()
    assert (
        trainer.state.best_metric,
        trainer.state.best_global_step,
        trainer.state.global_step,
    ) == (
        0.6,
        8,
        16,
    )
    assert trainer.lr_scheduler.best == 0.3  # it looks for the smallest
    assert "Early stopping watches" not in caplog.text


def test_eval_sets_aggregate_is_a_search_objective(tmp_path):
    trainer = make_trainer(
        tmp_path,
        model_init=lambda: tiny(),
        eval_dataset=SETS,
        eval_aggregate="mean",
        eval_strategy="epoch",
    )
    best = trainer.hyperparameter_search(
        lambda trial: {}, lambda metrics: metrics["eval_mean_loss"], n_trials=1
    )
    assert best.objective == trainer.evaluate()["eval_mean_loss"]


BAD = {
    "a name that is not a set": (
        {"compute_metrics": {"a": first, "d": first}},
        "d, which is not a set .*: a, b, c",
    ),
    "a bad metric of one set": (
        {"compute_metrics": {"a": 3}},
        "compute_metrics must be callable.* int",
    ),
    "no sets": (
        {"eval_dataset": points(4), "eval_aggregate": "mean"},
        "eval_dataset is a list. Pass",
    ),
    "a set of that name": (
        {"eval_dataset": {"mean": points(4)}, "eval_aggregate": "mean"},
        "none of them called",
    ),
    "an unknown aggregate": ({"eval_aggregate": "meen"}, "Did you mean 'mean'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_anything_is_written(tmp_path, name):
    changes, message = BAD[name]
    with pytest.raises((ValueError, TypeError), match=message):
        make_trainer(tmp_path / "new", **{"eval_dataset": SETS, **changes})
    assert not (tmp_path / "new").exists()


class Noise:
    """Adds noise from its own generator to the batch."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(7)

    def __call__(self, samples):
        batch = default_data_collator(samples)
        return {**batch, "x": batch["x"] + torch.randn(batch["x"].shape, generator=self.generator)}


def test_evaluations_and_predictions_have_their_collator_and_training_has_not(tmp_path):
    sizes = []

    def collate(samples):
        sizes.append(len(samples))
        return default_data_collator(samples)

    trainer = trained_trainer(tmp_path, eval_data_collator=collate, eval_strategy="epoch")
    assert sizes == [4, 2]
    trainer.predict(points(3))
    assert sizes == [4, 2, 3]
    other = trained_trainer(tmp_path, eval_strategy="epoch")
    assert losses(trainer) == losses(other)


def _trained(folder, collator, **train):
    options = {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    trainer = make_trainer(folder, eval_data_collator=collator, **options)
    trainer.train(**train)
    return trainer


def test_eval_sets_keep_the_generator_of_a_collator(tmp_path):
    """Its generator is in the checkpoint; negative control: a new one gives other losses."""

    def evaluated(made):
        return [entry["eval_loss"] for entry in made.state.log_history if "eval_loss" in entry]

    whole, again = _trained(tmp_path, Noise()), str(tmp_path / "checkpoint-2")
    resumed = _trained(tmp_path, Noise(), resume_from_checkpoint=again)
    assert evaluated(resumed) == evaluated(whole)
    assert all(map(torch.equal, weights(resumed.model).values(), weights(whole.model).values()))
    assert evaluated(_trained(tmp_path / "new", Noise()))[2:] != evaluated(whole)[:2]


def test_sets_of_sequences(tmp_path):
    """Keyword arguments of `generate` reach every set, and Seq2SeqTrainer has the collator of
    evaluations, too.
    """
    collated = []

    def collate(samples):
        collated.append(len(samples))
        return pad(samples)

    sets = {"a": pairs(2, seed=1), "b": pairs(4, seed=2)}
    parts = {
        "eval_dataset": sets,
        "compute_metrics": {"a": first, "b": first},
        "eval_data_collator": collate,
    }
    trainer = seq2seq_trainer(
        tmp_path, trainer={"data_collator": None, **parts}, eval_aggregate="mean"
    )
    assert trainer.evaluate(max_length=3)["eval_mean_count"] == 3
    assert {call["max_length"] for call in trainer.model.calls} == {3}
    assert collated == [2, 4]
