"""Every way to feed a Trainer gives the same batches in the same order, drawn at the same moments."""

import pytest
import torch
from datasets_for_parity import MeasuredStream, NoisyPoints, Stream, pad, point_data, points, sentences
from harness import Case, assert_parity, build
from models import Classifier, TokenModel, gpt2

LENGTHS = [*({"num_train_epochs": epochs} for epochs in (1, 2.5, 0.4)), *({"max_steps": steps} for steps in (1, 4, 9))]


@pytest.mark.parametrize("length", LENGTHS, ids=str)
@pytest.mark.parametrize("accumulation", [1, 4, 50])
def test_trainings_of_any_length(reference, ours, tmp_path, length, accumulation):
    """Within and after an epoch of six batches, with windows that have a remainder or are longer than an epoch."""
    arguments = {**length, "gradient_accumulation_steps": accumulation}
    assert_parity(reference, ours, Case(Classifier, point_data, arguments), tmp_path)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_dataset_that_draws_from_the_global_generator(reference, ours, tmp_path, accumulation):
    """Items are fetched one batch ahead of the step, between the dropout draws of the steps: in the same places."""

    def data():
        return {"train_dataset": NoisyPoints(22), "eval_dataset": NoisyPoints(10, seed=11)}

    arguments = {"gradient_accumulation_steps": accumulation, "eval_strategy": "steps", "eval_steps": 2}
    case = Case(Classifier, data, arguments, test=lambda: NoisyPoints(7, seed=21))
    assert_parity(reference, ours, case, tmp_path)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("max_steps", [3, 11])
def test_a_stream_of_unknown_length(reference, ours, tmp_path, accumulation, max_steps):
    """18 items are 5 batches: 11 steps read the stream several times, and windows of 2 leave one batch over."""

    def data():
        return {"train_dataset": Stream(points(18)), "eval_dataset": Stream(points(10, seed=11))}

    arguments = {
        "max_steps": max_steps,
        "gradient_accumulation_steps": accumulation,
        "eval_strategy": "steps",
        "eval_steps": 2,
    }
    case = Case(Classifier, data, arguments, test=lambda: Stream(points(7, seed=21)))
    assert_parity(reference, ours, case, tmp_path)


def test_a_stream_that_ends_in_mid_window_carries_its_gradients_on(reference, ours, tmp_path):
    """5 batches in windows of 3: the gradients of batches 4 and 5 are there when the next reading begins."""

    def data():
        return {"train_dataset": Stream(sentences(18)), "data_collator": pad}

    arguments = {"max_steps": 5, "gradient_accumulation_steps": 3, "optim": "sgd", "learning_rate": 0.1}
    assert_parity(reference, ours, Case(TokenModel, data, arguments), tmp_path)


def test_a_stream_shorter_than_one_window(reference, ours, tmp_path):
    """2 batches in windows of 3 never fill one: the carried gradients must still not be lost or stepped early."""

    def data():
        return {"train_dataset": Stream(points(6)), "eval_dataset": points(4)}

    arguments = {"max_steps": 2, "gradient_accumulation_steps": 3, "optim": "sgd"}
    case = Case(Classifier, data, arguments, extras=lambda api: {"callbacks": [_stop_after_epochs(api, 4)]})
    assert_parity(reference, ours, case, tmp_path)


def test_a_stream_without_items_is_an_error(reference, ours, tmp_path):
    """Nothing to train on: a `ValueError`, not a training of no steps that looks like success."""
    case = Case(Classifier, lambda: {"train_dataset": Stream([])}, {"max_steps": 3})
    for api in (reference, ours):
        with pytest.raises(ValueError, match="data"):
            build(api, case, tmp_path / api.__name__).train()


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_stream_that_knows_its_length(reference, ours, tmp_path, accumulation):
    def data():
        return {"train_dataset": MeasuredStream(points(18)), "eval_dataset": MeasuredStream(points(10, seed=11))}

    arguments = {"gradient_accumulation_steps": accumulation, "eval_strategy": "epoch"}
    assert_parity(reference, ours, Case(Classifier, data, arguments, test=lambda: MeasuredStream(points(7))), tmp_path)


def test_a_table_with_columns_the_model_does_not_know(reference, ours, tmp_path):
    """A `datasets.Dataset` loses the columns that the model does not take, and is shuffled as any other."""
    import datasets

    def table(count: int, seed: int):
        items = sentences(count, seed, shortest=6, longest=6)
        columns = {key: [item[key].tolist() for item in items] for key in ("input_ids", "labels")}
        return datasets.Dataset.from_dict({**columns, "text": ["unused"] * count})

    def data():
        return {"train_dataset": table(22, 2), "eval_dataset": table(10, 12)}

    case = Case(gpt2, data, {"eval_strategy": "epoch"}, test=lambda: table(7, 22))
    assert_parity(reference, ours, case, tmp_path)


def test_a_tensor_dataset_of_nested_inputs(reference, ours, tmp_path):
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


def _stop_after_epochs(api, count: int):
    class Stop(api.TrainerCallback):
        def __init__(self):
            self.epochs = 0

        def on_epoch_end(self, args, state, control, **kwargs):
            self.epochs += 1
            control.should_training_stop = self.epochs >= count

    return Stop()
