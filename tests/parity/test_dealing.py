"""Every key of `accelerator_config`, and activations that are computed again, give the same bits in one process."""

import copy

import pytest
import torch
from comparison import differences
from datasets_for_parity import MeasuredStream, Stream, class_data, pad, point_data, points, sentence_data, sentences
from harness import Case, assert_parity, assert_same, build, run
from models import Classifier, TokenModel, bert, gpt2

CONFIGS = {
    "split": {"split_batches": True},
    "dispatched": {"dispatch_batches": True},
    "each reads": {"dispatch_batches": False},
    "uneven": {"even_batches": False},
    "plain order": {"use_seedable_sampler": False},
    "window": {
        "gradient_accumulation_kwargs": {"num_steps": 3, "sync_each_batch": True, "sync_with_dataloader": False}
    },
    "everything": {
        "split_batches": True,
        "dispatch_batches": True,
        "non_blocking": True,
        "gradient_accumulation_kwargs": {"adjust_scheduler": False},
    },
}


def stream_data():
    return {"train_dataset": Stream(points(18)), "eval_dataset": Stream(points(10, seed=11))}


def measured_data():
    return {"train_dataset": MeasuredStream(points(18)), "eval_dataset": MeasuredStream(points(10, seed=11))}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("data", [point_data, stream_data, measured_data])
def test_accelerator_config(reference, ours, tmp_path, name, data):
    """One evaluation is left out: of a stream that is not dispatched, the reference counts the last batch as full."""
    evaluated = not (name == "each reads" and data is stream_data)
    arguments = {"accelerator_config": copy.deepcopy(CONFIGS[name]), "eval_steps": 2}
    arguments["eval_strategy"] = "steps" if evaluated else "no"
    case = Case(Classifier, data, {**arguments, "max_steps": 7}, test=lambda: points(7, seed=21))
    expected = run(reference, case, tmp_path / "reference")
    # The reference changes what it is given: a second training with it would be refused.
    arguments["accelerator_config"] = copy.deepcopy(CONFIGS[name])
    actual = run(ours, case.but(arguments=arguments), tmp_path / "ours")
    assert_same(expected, actual)
    assert actual.trainer.args.gradient_accumulation_steps == (3 if name == "window" else 1)


# From 5.23 on `activation_checkpointing` is the name.
@pytest.mark.filterwarnings("ignore:`(is_)?gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("model", [gpt2, bert])
@pytest.mark.parametrize("settings", [None, {"use_reentrant": True}, {"use_reentrant": False}], ids=str)
def test_gradient_checkpointing(reference, ours, tmp_path, model, settings):
    arguments = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": settings}
    data = sentence_data if model is gpt2 else class_data
    _, actual = assert_parity(reference, ours, Case(model, data, {**arguments, "eval_strategy": "epoch"}), tmp_path)
    assert actual.trainer.model.is_gradient_checkpointing


def test_checkpointing_of_any_model_is_as_if_there_were_none(ours, tmp_path):
    """The reference knows it for models of its own only."""
    plain = Case(Classifier, point_data, {"gradient_accumulation_steps": 2})
    twice = plain.but(arguments={"activation_checkpointing": True})
    one, other = run(ours, plain, tmp_path / "plain"), run(ours, twice, tmp_path / "twice")
    assert_same(one, other)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_grouping_by_a_column_that_the_model_does_not_take(reference, ours, tmp_path, accumulation):
    """5.3.0 reads it only where columns are not removed; what is there is used in any case, as is documented."""
    import datasets

    def data(extra=True):
        items = sentences(22, 2)
        columns = {key: [item[key].tolist() for item in items] for key in ("input_ids", "labels")}
        lengths = {"length": [len(item["input_ids"]) for item in items]} if extra else {}
        return datasets.Dataset.from_dict({**columns, **lengths})

    def padded(rows):
        return pad([{key: torch.tensor(row[key]) for key in ("input_ids", "labels")} for row in rows])

    arguments = {"train_sampling_strategy": "group_by_length", "gradient_accumulation_steps": accumulation}
    case = Case(TokenModel, lambda: {"train_dataset": data(), "data_collator": padded}, arguments)
    assert_parity(reference, ours, case, tmp_path)


class Finder(torch.nn.Module):
    """Gives a list with something for each sample, of different lengths."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x, labels):
        found = [self.scale * row[: len(label["area"])] for row, label in zip(x, labels, strict=True)]
        return {"loss": torch.cat(found).square().mean(), "found": found}


def targets(samples):
    labels = [{"area": torch.full((1 + int(sample["labels"]),), float(sample["x"][0]))} for sample in samples]
    return {"x": torch.stack([sample["x"] for sample in samples]), "labels": labels}


@pytest.mark.parametrize("gathered", [True, False])
def test_predictions_that_are_lists_of_objects(reference, ours, tmp_path, gathered):
    """Batch by batch as in the reference; joined, where it cuts what is longer than the last batch, as one list."""
    arguments = {
        "eval_use_gather_object": gathered,
        "eval_do_concat_batches": False,
        "remove_unused_columns": False,
        "label_names": ["labels"],
    }
    case = Case(Finder, lambda: {"data_collator": targets}, arguments)
    seen = []
    for api in (reference, ours):
        output = build(api, case, tmp_path / api.__name__).predict(points(10))
        seen.append((output.predictions, output.label_ids, output.metrics["test_loss"]))
    assert not differences(*seen)
    assert [len(batch) for batch in seen[1][1]] == [4, 4, 2]
    if gathered:
        joined = build(ours, case.but(arguments={"eval_do_concat_batches": True}), tmp_path).predict(points(10))
        for one, other in ((joined.predictions, seen[1][0]), (joined.label_ids, seen[1][1])):
            assert not differences(one, [sample for batch in other for sample in batch])
