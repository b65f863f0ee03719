"""Trainings of models in float64."""

import pytest
import torch

from helpers.trainer.tiny_trainings import Tiny, points, trained_trainer, weights


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_accumulated_gradients_of_float64_are_exact(tmp_path, batch_size):
    """Micro-batches of different sizes weigh by their share of the step, which 7 rows make."""

    def train(batch_size, accumulation):
        torch.manual_seed(3)
        samples = [{**point, "x": point["x"].double()} for point in points(7)]
        return trained_trainer(
            tmp_path,
            model=Tiny(dropout=0.0).double(),
            train_dataset=samples,
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation,
            num_train_epochs=5,
            optim="sgd",
        )

    whole = weights(train(7, 1).model)
    divided = weights(train(batch_size, 7).model)
    for name, weight in whole.items():
        assert torch.allclose(weight, divided[name], rtol=0, atol=1e-14)
