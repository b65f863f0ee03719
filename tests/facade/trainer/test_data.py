"""From datasets to batches: loaders, samplers, columns, collators, evaluation sets."""

import pytest
import torch
from tiny import trainer

from lightrainer import DataCollatorWithPadding, default_data_collator

# --- loaders


def test_how_many_examples(tmp_path):
    made = trainer(tmp_path, max_steps=2)
    assert made.num_examples(made.get_train_dataloader()) == 16
    assert made.num_examples([1, 2, 3]) == 12, "no dataset behind it: batches times their size"
    length = made.set_initial_training_values(made.args, made.get_train_dataloader())
    assert length == (1, 4, 16, 8, 4, 4, 2)


# --- columns


def test_a_collator_that_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"batch is empty.*x, labels"):
        trainer(tmp_path, data_collator=lambda items: {}).train()


# --- collators


def test_the_default_collator_pads_with_what_can_pad(tmp_path):
    class Padding:
        model_input_names = ["x"]

        def pad(self, features, **kwargs):
            rows = [[*feature["x"], *[0.0] * (8 - len(feature["x"]))] for feature in features]
            return {"x": torch.tensor(rows), "labels": torch.tensor([feature["labels"] for feature in features])}

    data = [{"x": [1.0] * (5 + index % 4), "labels": index % 3} for index in range(8)]
    made = trainer(tmp_path, train_dataset=data, processing_class=Padding())
    assert isinstance(made.data_collator, DataCollatorWithPadding)
    assert made.train().global_step == 2
    assert trainer(tmp_path).data_collator is default_data_collator
    assert trainer(tmp_path, processing_class=object()).data_collator is default_data_collator


# --- evaluation sets
