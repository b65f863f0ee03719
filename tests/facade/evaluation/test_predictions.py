"""Which outputs of a model are predictions."""

from types import SimpleNamespace

import pytest
import torch

from helpers.trainer.tiny_trainings import points, trainer


class Caching(torch.nn.Linear):
    """Returns a cache beside its scores, which is no tensor, as those of language models."""

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
    made = trainer(tmp_path, model=Caching(name, SimpleNamespace()))
    assert made.predict(points(4)).predictions.shape == (4, 3)
    made = trainer(tmp_path, model=Caching(name, None))
    with pytest.raises((TypeError, AttributeError)):
        made.predict(points(4))
