"""Which outputs of a model are predictions."""

from types import SimpleNamespace

import pytest
import torch

from helpers.trainer.tiny_trainings import arguments, make_trainer, points, tiny
from lightrainer import Trainer


class Caching(torch.nn.Linear):
    """Returns a cache beside its scores, which is not a tensor, like those of language models."""

    def __init__(self, name, config):
        super().__init__(8, 3)
        self.name = name
        if config is not None:
            self.config = config

    def forward(self, x, labels=None):
        scores = super().forward(x)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        return {"loss": loss, "logits": scores, self.name: SimpleNamespace(layers=[scores])}


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_caches_of_models_are_no_predictions(tmp_path, name):
    """They are called `cache` since transformers 5.24. Without a config an output of any name is
    a prediction.
    """
    trainer = make_trainer(tmp_path, model=Caching(name, SimpleNamespace()))
    assert trainer.predict(points(4)).predictions.shape == (4, 3)
    trainer = make_trainer(tmp_path, model=Caching(name, None))
    with pytest.raises((TypeError, AttributeError)):
        trainer.predict(points(4))


class Detector(torch.nn.Linear):
    """Returns scores for each image, and a row of scores for each of its cells."""

    def __init__(self):
        super().__init__(8, 3)

    def forward(self, x, labels=None):
        scores = super().forward(x)
        loss = torch.stack([label["boxes"].mean() for label in labels]).mean()
        return {"loss": loss, "logits": scores, "cells": scores.flatten()[:, None]}


def detections(count):
    """Images with 1 to 4 boxes, which have the number of their image."""
    samples = []
    for index, point in enumerate(points(count)):
        boxes = torch.full((1 + (index + 1) % 4, 2), float(index))
        samples.append({"x": point["x"], "labels": {"boxes": boxes}})
    return samples


def listed(samples):
    """A collator that keeps labels in a list, as those of object detection do."""
    return {
        "x": torch.stack([sample["x"] for sample in samples]),
        "labels": [sample["labels"] for sample in samples],
    }


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("workers", [0, 1])
def test_labels_of_the_last_batch_keep_all_boxes(tmp_path, joins, workers):
    """The last batch has two images, of which the first has three boxes."""
    changes = {"eval_do_concat_batches": joins, "dataloader_num_workers": workers}
    trainer = make_trainer(tmp_path, model=Detector(), data_collator=listed, **changes)
    labels = trainer.predict(detections(6)).label_ids
    if not joins:
        assert [len(batch) for batch in labels] == [4, 2]
        labels = [*labels[0], *labels[1]]
    expected = [sample["labels"]["boxes"].tolist() for sample in detections(6)]
    assert [label["boxes"].tolist() for label in labels] == expected


def test_rows_that_are_no_samples_remain_in_the_last_batch(tmp_path):
    trainer = make_trainer(tmp_path, model=Detector(), data_collator=listed)
    scores, cells = trainer.predict(detections(6)).predictions
    assert cells.flatten().tolist() == scores.flatten().tolist()


@pytest.mark.parametrize("indices", [[1, 2, 3, 5, 8, 9], [*range(11), *range(10)]])
def test_samples_of_a_sampler_are_all_predicted(tmp_path, indices):
    """It selects some of the samples, or repeats them."""

    class Selecting(Trainer):
        def _get_eval_sampler(self, eval_dataset):
            return indices

    arguments_ = arguments(tmp_path, include_for_metrics=["loss"])
    trainer = Selecting(tiny(), arguments_, eval_dataset=points(11))
    trainer.compute_metrics = lambda prediction: {"losses": len(prediction.losses)}
    assert trainer.evaluate()["eval_losses"] == len(indices)
    labels = trainer.predict(points(11)).label_ids.tolist()
    assert labels == [int(points(11)[index]["labels"]) for index in indices]
