"""Wrong kinds of data, batches, functions and settings are named before the first step; what is
only unusual works.
"""

from collections import UserDict

import numpy as np
import pytest
import torch
from tiny import At, points, tiny, trainer, weights

from lightrainer import DataCollatorWithPadding, Trainer, default_data_collator

EPOCH = {"eval_strategy": "epoch"}
BEST = {**EPOCH, "save_strategy": "epoch", "load_best_model_at_end": True}


def refused(folder, action, match, **changes):
    """A TypeError or ValueError, and no step was taken."""
    steps = []
    with pytest.raises((TypeError, ValueError), match=match):
        action(
            trainer(folder, callbacks=[At("on_step_end", lambda *_: steps.append(1))], **changes)
        )
    assert not steps


def train(made):
    made.train()


DATA = [
    ((one for one in points(4)), r"eval_dataset .*generator.*only once.*list"),
    ({"a": iter(points(4))}, r"eval_dataset\['a'\] .*only once"),
    ({"a": "train"}, r"eval_dataset\['a'\] .*str"),
    ({"a": {"b": points(4)}}, r"eval_dataset\['a'\] .*dict \(b\)"),
]


@pytest.mark.parametrize(
    ("data", "match"), DATA, ids=["a generator", "an iterator", "text", "a dict"]
)
def test_evaluation_data_of_wrong_kinds(tmp_path, data, match):
    refused(tmp_path, train, match, eval_dataset=data, **EPOCH)


@pytest.mark.parametrize(
    "data", [None, 5, "test", {"a": points(2)}], ids=lambda data: type(data).__name__
)
def test_data_of_wrong_kinds_to_predict(tmp_path, data):
    refused(
        tmp_path,
        lambda made: made.predict(data),
        r"test_dataset must be a dataset .*is (a )?(None|int|str|dict)",
    )
    if data is not None and not isinstance(data, (str, dict)):
        refused(
            tmp_path, lambda made: made.evaluate(data), r"eval_dataset must be a dataset .*is int"
        )


def stacked(samples):
    return {name: torch.stack([sample[name] for sample in samples]) for name in ("x", "labels")}


def test_batches_of_unusual_kinds(tmp_path):
    """Mappings that are no dicts, and tuples where the step that reads them is overridden, give
    the same weights.
    """

    class Tuples(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(*inputs)["loss"]

    found = []
    mapping, in_tuples = (
        lambda samples: UserDict(stacked(samples)),
        lambda samples: tuple(stacked(samples).values()),
    )
    for cls, collator in ((Trainer, stacked), (Trainer, mapping), (Tuples, in_tuples)):
        made = trainer(tmp_path, cls, data_collator=collator, model=tiny())
        torch.manual_seed(5)
        made.train()
        found.append(weights(made.model))
    assert all(torch.equal(found[0][name], other[name]) for other in found[1:] for name in found[0])


def test_unusual_metrics(tmp_path):
    for result in (None, {}, {"a": np.float32(1)}, {"a": np.ones(2)}, UserDict(a=1.0)):
        assert (
            trainer(tmp_path, compute_metrics=lambda _, result=result: result).evaluate()[
                "eval_loss"
            ]
            > 0
        )


@pytest.mark.parametrize("value", [np.ones(3), "x", {"b": 1.0}, None], ids=str)
def test_a_best_metric_that_is_no_number(tmp_path, value):
    made = trainer(
        tmp_path, compute_metrics=lambda _: {"a": value}, metric_for_best_model="a", **BEST
    )
    with pytest.raises(TypeError, match=r"metric_for_best_model='a' is .*number"):
        made.train()


def test_settings_of_checkpointing_that_torch_does_not_know(tmp_path):
    def wrong(name):
        return {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {name: True}}

    refused(
        tmp_path, train, r"gradient_checkpointing_kwargs has 'foo'.*use_reentrant", **wrong("foo")
    )
    trainer(tmp_path, **wrong("preserve_rng_state")).train()


def test_a_collator_that_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"batch is empty.*x, labels"):
        trainer(tmp_path, data_collator=lambda items: {}).train()


def test_the_default_collator_pads_with_what_can_pad(tmp_path):
    class Padding:
        model_input_names = ["x"]

        def pad(self, features, **kwargs):
            rows = [[*feature["x"], *[0.0] * (8 - len(feature["x"]))] for feature in features]
            return {
                "x": torch.tensor(rows),
                "labels": torch.tensor([feature["labels"] for feature in features]),
            }

    data = [{"x": [1.0] * (5 + index % 4), "labels": index % 3} for index in range(8)]
    made = trainer(tmp_path, train_dataset=data, processing_class=Padding())
    assert isinstance(made.data_collator, DataCollatorWithPadding)
    assert made.train().global_step == 2
    assert trainer(tmp_path).data_collator is default_data_collator
    assert trainer(tmp_path, processing_class=object()).data_collator is default_data_collator
