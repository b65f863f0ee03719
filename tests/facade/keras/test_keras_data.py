"""Data of all kinds that a TFTrainer takes without TensorFlow: the same samples give the same
training.
"""

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="keras is not installed")

import datasets
import torch
from torch.utils.data import Dataset, IterableDataset

from helpers.keras.tiny_keras import furthest, losses, make_trainer, points, weights
from lightrainer import TFTrainer

X, Y = (np.stack(part) for part in zip(*points(), strict=True))


class MapStyle(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return torch.as_tensor(X[index]), int(Y[index])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


KINDS = {
    "lists": [(row.tolist(), int(label)) for row, label in zip(X, Y, strict=True)],
    "map-style": MapStyle(),
    "stream": Stream(),
    "columns": datasets.Dataset.from_dict({"x": X, "labels": Y}),
}


@pytest.fixture(scope="module")
def of_pairs(tmp_path_factory):
    """The outcome of a training on pairs of arrays, in order."""
    trainer = make_trainer(
        tmp_path_factory.mktemp("pairs"), train_sampling_strategy="sequential", max_steps=7
    )
    trainer.train()
    return losses(trainer), weights(trainer.model), trainer.evaluate(points())["eval_loss"]


@pytest.mark.parametrize("kind", KINDS)
def test_keras_data_kinds_give_the_same_training(tmp_path, of_pairs, kind):
    data = KINDS[kind]
    trainer = make_trainer(
        tmp_path, train_dataset=data, train_sampling_strategy="sequential", max_steps=7
    )
    trainer.train()
    assert losses(trainer) == of_pairs[0]
    assert furthest(weights(trainer.model), of_pairs[1]) == 0
    assert trainer.evaluate(data)["eval_loss"] == pytest.approx(of_pairs[2], abs=1e-7)
    predicted = trainer.predict(data)
    assert predicted.predictions.shape == (16, 3)
    assert (predicted.label_ids == Y).all()


def test_worker_processes_read_sequences(tmp_path, of_pairs):
    options = {"train_sampling_strategy": "sequential", "max_steps": 7, "dataloader_num_workers": 1}
    trainer = make_trainer(tmp_path, train_dataset=points(), **options)
    trainer.train()
    assert losses(trainer) == of_pairs[0]


def test_features_and_labels_may_have_parts(tmp_path):
    """Several columns are a dict, as the model takes it; label_names says which are labels."""
    calls = []

    class Own(TFTrainer):
        def run_model(self, features, labels, training):
            calls.append((features, labels))
            if isinstance(features, tuple):
                return super().run_model(features[0]["x"], labels, training)
            loss, logits = super().run_model(features["x"], labels["y"], training)
            return loss * labels["weight"], logits

    rows = [{"x": x, "scale": 2.0, "y": y, "weight": 0.5} for x, y in zip(X, Y, strict=True)]
    trainer = make_trainer(
        tmp_path, cls=Own, train_dataset=rows, label_names=["y", "weight"], max_steps=1
    )
    trainer.train()
    features, labels = calls[0]
    assert features.keys() == {"x", "scale"}
    assert labels.keys() == {"y", "weight"}
    assert features["scale"].dtype == torch.float32
    assert trainer.predict(rows[:3]).label_ids[1].tolist() == [0.5] * 3
    pairs = [(({"x": x}, np.ones(2)), y) for x, y in points(4)]
    make_trainer(tmp_path, cls=Own, train_dataset=pairs, max_steps=1).train()
    assert calls[-1][0][1].shape == (4, 2)


def test_data_is_shuffled_with_the_seed(tmp_path):
    def order(**changes):
        trainer = make_trainer(tmp_path, num_train_epochs=1, **changes)
        trainer.train()
        return losses(trainer)

    assert order() == order(seed=42) != order(seed=1)
