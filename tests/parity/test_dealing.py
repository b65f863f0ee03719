"""Every key of `accelerator_config`, and activations that are computed again, give the same bits
in one process.
"""

import copy

import pytest
import torch

from helpers.parity.harness import Case, assert_parity, assert_same, run
from helpers.parity.parity_datasets import (
    MeasuredStream,
    Stream,
    class_data,
    pad,
    point_data,
    points,
    sentence_data,
    sentences,
)
from helpers.parity.parity_models import Classifier, TokenModel, bert, gpt2

CONFIGS = {
    "split": {"split_batches": True},
    "dispatched": {"dispatch_batches": True},
    "each reads": {"dispatch_batches": False},
    "uneven": {"even_batches": False},
    "plain order": {"use_seedable_sampler": False},
    "window": {"gradient_accumulation_kwargs": {"num_steps": 3, "sync_each_batch": True}},
    "split and dispatched": {
        "split_batches": True,
        "dispatch_batches": True,
        "non_blocking": True,
    },
}


def stream_data():
    return {"train_dataset": Stream(points(22)), "eval_dataset": Stream(points(10, seed=11))}


def measured_data():
    return {
        "train_dataset": MeasuredStream(points(22)),
        "eval_dataset": MeasuredStream(points(10, seed=11)),
    }


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("data", [point_data, stream_data, measured_data])
def test_accelerator_config(reference, ours, tmp_path, name, data):
    """One evaluation is left out: of a stream that is not dispatched, the reference counts the
    last batch as full.
    """
    evaluated = not (name == "each reads" and data is stream_data)
    arguments = {"accelerator_config": copy.deepcopy(CONFIGS[name]), "eval_steps": 2}
    arguments["eval_strategy"] = "steps" if evaluated else "no"
    case = Case(Classifier, data, {**arguments, "max_steps": 7}, test=lambda: points(7, seed=21))
    expected = run(reference, case, tmp_path / "reference")
    # The reference modifies its argument: a second training with it would be refused.
    arguments["accelerator_config"] = copy.deepcopy(CONFIGS[name])
    actual = run(ours, case.but(arguments=arguments), tmp_path / "ours")
    assert_same(expected, actual)
    assert actual.trainer.args.gradient_accumulation_steps == (3 if name == "window" else 1)


# From 5.23 on `activation_checkpointing` is the name.
@pytest.mark.filterwarnings("ignore:`(is_)?gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("model", [gpt2, bert])
@pytest.mark.parametrize(
    "settings", [None, {"use_reentrant": True}, {"use_reentrant": False}], ids=str
)
def test_gradient_checkpointing(reference, ours, tmp_path, model, settings):
    arguments = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": settings}
    data = sentence_data if model is gpt2 else class_data
    _, actual = assert_parity(
        reference, ours, Case(model, data, {**arguments, "eval_strategy": "epoch"}), tmp_path
    )
    assert actual.trainer.model.is_gradient_checkpointing


def test_checkpointing_of_any_model_is_as_if_there_were_none(ours, tmp_path):
    """The reference has it for its own models only."""
    plain = Case(Classifier, point_data, {"gradient_accumulation_steps": 2})
    twice = plain.but(arguments={"activation_checkpointing": True})
    expected, actual = run(ours, plain, tmp_path / "plain"), run(ours, twice, tmp_path / "twice")
    assert_same(expected, actual)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_grouping_by_a_column_that_the_model_does_not_take(reference, ours, tmp_path, accumulation):
    """5.3.0 reads it only where columns are not removed; what is there is used in any case, as
    is documented.
    """
    import datasets

    items = sentences(22, 2)
    columns = {key: [item[key].tolist() for item in items] for key in ("input_ids", "labels")}
    data = datasets.Dataset.from_dict(
        {**columns, "length": [len(item["input_ids"]) for item in items]}
    )

    def padded(rows):
        return pad(
            [{key: torch.tensor(row[key]) for key in ("input_ids", "labels")} for row in rows]
        )

    arguments = {
        "train_sampling_strategy": "group_by_length",
        "gradient_accumulation_steps": accumulation,
    }
    case = Case(TokenModel, lambda: {"train_dataset": data, "data_collator": padded}, arguments)
    assert_parity(reference, ours, case, tmp_path)
