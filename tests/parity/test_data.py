"""Every way to feed a Trainer gives the same batches in the same order, drawn at the same
moments.
"""

import pytest
import torch

from helpers.parity.harness import Case, assert_parity, assert_same, build, run
from helpers.parity.parity_datasets import (
    MeasuredStream,
    NoisyPoints,
    Stream,
    pad,
    point_data,
    points,
    sentences,
)
from helpers.parity.parity_models import Classifier, TokenModel, gpt2

LENGTHS = [
    *({"num_train_epochs": epochs} for epochs in (1, 2.5, 0.4)),
    *({"max_steps": steps} for steps in (1, 4, 9)),
]


@pytest.mark.parametrize("length", LENGTHS, ids=str)
@pytest.mark.parametrize("accumulation", [1, 4, 50])
def test_trainings_of_any_length(reference, ours, tmp_path, length, accumulation):
    """Within and after an epoch of six batches, with windows that have a remainder or are longer
    than an epoch.
    """
    arguments = {**length, "gradient_accumulation_steps": accumulation}
    assert_parity(reference, ours, Case(Classifier, point_data, arguments), tmp_path)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_data_dataset_that_draws_from_the_global_generator(reference, ours, tmp_path, accumulation):
    """Items are fetched one batch ahead of the step, between the dropout draws of the steps: in
    the same places.
    """

    def data():
        return {"train_dataset": NoisyPoints(22), "eval_dataset": NoisyPoints(10, seed=11)}

    arguments = {
        "gradient_accumulation_steps": accumulation,
        "eval_strategy": "steps",
        "eval_steps": 2,
    }
    case = Case(Classifier, data, arguments, test=lambda: NoisyPoints(7, seed=21))
    assert_parity(reference, ours, case, tmp_path)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("max_steps", [3, 11])
def test_data_stream_of_unknown_length(reference, ours, tmp_path, accumulation, max_steps):
    """22 items are 6 batches, or 3 windows of 2: 11 steps read the stream several times."""

    def data():
        return {"train_dataset": Stream(points(22)), "eval_dataset": Stream(points(10, seed=11))}

    arguments = {
        "max_steps": max_steps,
        "gradient_accumulation_steps": accumulation,
        "eval_strategy": "steps",
        "eval_steps": 2,
    }
    case = Case(Classifier, data, arguments, test=lambda: Stream(points(7, seed=21)))
    assert_parity(reference, ours, case, tmp_path)


@pytest.mark.parametrize("count", [18, 6], ids=["two batches left over", "shorter than one window"])
def test_data_stream_that_ends_inside_a_window_steps(reference, ours, tmp_path, count):
    """As the same data does where it has a length; the reference adds those gradients to the
    next window.
    """

    def data():
        return {"train_dataset": sentences(count), "data_collator": pad}

    def stream():
        return {"train_dataset": Stream(sentences(count)), "data_collator": pad}

    arguments = {
        "max_steps": 5,
        "gradient_accumulation_steps": 3,
        "optim": "sgd",
        "learning_rate": 0.1,
    }
    arguments["train_sampling_strategy"] = "sequential"
    case = Case(TokenModel, data, arguments)
    expected = run(reference, case, tmp_path / "reference")
    actual = run(ours, case.but(data=stream), tmp_path / "ours")
    only_with_a_length = ("state", "history", "output", "random_state")
    assert_same(expected, actual, ignoring=only_with_a_length)
    losses = [[entry.get("loss") for entry in training.history] for training in (expected, actual)]
    assert losses[0] == losses[1]
    if count > 12:  # where no window is full, the reference takes no step, and never ends
        unlike = run(reference, case.but(data=stream), tmp_path / "unlike")
        assert unlike.history[1]["loss"] != actual.history[1]["loss"]


def grow(rows):
    rows.extend(points(6, seed=len(rows)))


def shrink(rows):
    del rows[-7:]


class LengthByEpoch(list):
    """A dataset that is longer in the second epoch, and shorter in the third."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return (18, 25, 11)[self.epoch]


@pytest.mark.parametrize("sampling", ["random", "sequential"])
@pytest.mark.parametrize("change", [grow, shrink, None])
def test_data_dataset_that_changes_length_between_epochs(
    reference, ours, tmp_path, change, sampling
):
    """It is read as it is then, in no more steps an epoch than at the start."""

    def data():
        return {"train_dataset": points(18) if change else LengthByEpoch(points(25))}

    def callbacks(api):
        class Changes(api.TrainerCallback):
            def on_epoch_end(self, args, state, control, train_dataloader=None, **kwargs):
                if change:
                    change(train_dataloader.dataset)

        return {"callbacks": [Changes()]}

    arguments = {"num_train_epochs": 3, "train_sampling_strategy": sampling}
    assert_parity(reference, ours, Case(Classifier, data, arguments, extras=callbacks), tmp_path)


def test_data_empty_stream_raises(reference, ours, tmp_path):
    """Nothing to train on: a `ValueError`, not a training of no steps that looks like success."""
    case = Case(Classifier, lambda: {"train_dataset": Stream([])}, {"max_steps": 3})
    for api in (reference, ours):
        with pytest.raises(ValueError, match="data"):
            build(api, case, tmp_path / api.__name__).train()


@pytest.mark.parametrize("accumulation", [1, 3])
def test_data_stream_of_known_length(reference, ours, tmp_path, accumulation):
    def data():
        return {
            "train_dataset": MeasuredStream(points(18)),
            "eval_dataset": MeasuredStream(points(10, seed=11)),
        }

    arguments = {"gradient_accumulation_steps": accumulation, "eval_strategy": "epoch"}
    assert_parity(
        reference,
        ours,
        Case(Classifier, data, arguments, test=lambda: MeasuredStream(points(7))),
        tmp_path,
    )


def test_data_table_with_unknown_columns(reference, ours, tmp_path):
    """A `datasets.Dataset` loses the columns that the model does not take, and is shuffled as
    any other.
    """
    import datasets

    def table(count: int, seed: int):
        items = sentences(count, seed, shortest=6, longest=6)
        columns = {key: [item[key].tolist() for item in items] for key in ("input_ids", "labels")}
        return datasets.Dataset.from_dict({**columns, "text": ["unused"] * count})

    def data():
        return {"train_dataset": table(22, 2), "eval_dataset": table(10, 12)}

    case = Case(gpt2, data, {"eval_strategy": "epoch"}, test=lambda: table(7, 22))
    assert_parity(reference, ours, case, tmp_path)


def test_data_tensor_dataset_of_nested_inputs(reference, ours, tmp_path):
    """Inputs that are tuples and dicts of tensors arrive as they are."""

    class Nested(Classifier):
        def forward(self, parts, labels=None):
            return super().forward(torch.cat([parts["left"], *parts["rest"]], dim=1), labels)

    def collate(items):
        x = torch.stack([item["x"] for item in items])
        parts = {"left": x[:, :2], "rest": (x[:, 2:5], [x[:, 5:]][0])}
        return {"parts": parts, "labels": torch.stack([item["labels"] for item in items])}

    def data():
        return {**point_data(), "data_collator": collate}

    arguments = {"remove_unused_columns": False, "eval_strategy": "epoch"}
    assert_parity(reference, ours, Case(Nested, data, arguments), tmp_path)
