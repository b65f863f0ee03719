"""What transformers silently ignores and this package does: rows of differences.md.

Each test checks both libraries, so that an outdated row is noticed.
"""

import pytest
import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader

from helpers.parity.parity_datasets import Stream


class Regression(nn.Module):
    def __init__(self, bias=0.0):
        super().__init__()
        self.linear = nn.Linear(4, 1)
        nn.init.constant_(self.linear.bias, bias)

    def forward(self, x, labels=None):
        prediction = self.linear(x).squeeze(-1)
        return {"loss": nn.functional.mse_loss(prediction, labels), "logits": prediction}


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 1)

    def forward(self, input_ids, labels=None):
        prediction = self.embedding(input_ids).sum()
        return {"loss": prediction, "logits": prediction}


def points(count):
    torch.manual_seed(0)
    return [{"x": torch.randn(4), "labels": torch.randn(())} for _ in range(count)]


def arguments(api, folder, **options):
    defaults = {
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return api.TrainingArguments(str(folder), **(defaults | options))


@pytest.fixture(params=["reference", "ours"])
def library(request):
    """The name of a library, and the library."""
    return request.param, request.getfixturevalue(request.param)


def test_model_that_is_set_after_construction_is_trained_by_ours(library, tmp_path):
    name, api = library
    trainer = api.Trainer(Regression(), arguments(api, tmp_path), train_dataset=points(8))
    other = Regression(bias=3.0)
    trainer.model = other
    trainer.train()
    assert (other.linear.bias.item() != 3.0) == (name == "ours")


def test_model_that_is_replaced_between_trainings_is_trained_by_ours(library, tmp_path):
    name, api = library
    trainer = api.Trainer(Regression(), arguments(api, tmp_path), train_dataset=points(8))
    trainer.train()
    other = Regression(bias=3.0)
    trainer.model = trainer.model_wrapped = other
    trainer.train()
    assert (other.linear.bias.item() != 3.0) == (name == "ours")


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)
        self.config = None  # read by transformers where labels are smoothed

    def forward(self, x, labels=None):
        logits = self.linear(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize(
    ("argument", "value"),
    [("per_device_train_batch_size", 2), ("data_seed", 7), ("label_smoothing_factor", 0.5)],
)
def test_argument_that_is_set_after_construction_applies_in_ours(
    library, tmp_path, argument, value
):
    name, api = library
    samples = [{"x": point["x"], "labels": index % 3} for index, point in enumerate(points(16))]

    def trained_weight(at_construction, afterwards):
        settings = arguments(api, tmp_path, learning_rate=0.1, **at_construction)
        trainer = api.Trainer(Classifier(), settings, train_dataset=samples)
        for field, changed in afterwards.items():
            setattr(trainer.args, field, changed)
        trainer.train()
        return trainer.model.linear.weight.detach().clone()

    set_later = trained_weight({}, {argument: value})
    set_at_once = trained_weight({argument: value}, {})
    never_set = trained_weight({}, {})
    assert not torch.equal(set_at_once, never_set)
    assert torch.equal(set_later, set_at_once) == (name == "ours")
    assert torch.equal(set_later, never_set) == (name == "reference")


def test_override_of_create_optimizer_and_scheduler_is_called_by_ours(library, tmp_path):
    name, api = library
    calls = []

    class Own(api.Trainer):
        def create_optimizer_and_scheduler(self, num_training_steps):
            calls.append(num_training_steps)
            super().create_optimizer_and_scheduler(num_training_steps)

    Own(Regression(), arguments(api, tmp_path), train_dataset=points(8)).train()
    assert calls == ([2] if name == "ours" else [])


def test_own_evaluation_loader_keeps_its_rows_after_a_training_in_ours(library, tmp_path):
    """The last training batch has 2 rows, and the batches of the evaluation 5."""
    name, api = library

    class Own(api.Trainer):
        def get_eval_dataloader(self, eval_dataset=None):
            return DataLoader(self.eval_dataset, batch_size=5)

        def get_test_dataloader(self, test_dataset):
            return DataLoader(test_dataset, batch_size=5)

    args = arguments(api, tmp_path, max_steps=-1, num_train_epochs=1)
    trainer = Own(Regression(), args, train_dataset=points(6), eval_dataset=points(10))
    before = trainer.predict(points(10)).predictions
    trainer.train()
    after = trainer.predict(points(10)).predictions
    assert len(before) == 10
    assert len(after) == (10 if name == "ours" else 4)


def test_last_batch_of_a_stream_counts_its_rows_in_the_loss_of_ours(library, tmp_path):
    """The mean of 3 rows in batches of 2: the reference counts the last row twice."""
    name, api = library
    rows = points(3)
    model = Regression()
    args = arguments(
        api,
        tmp_path,
        per_device_eval_batch_size=2,
        accelerator_config={"dispatch_batches": False},
    )
    trainer = api.Trainer(model, args, eval_dataset=Stream(rows))
    loss = trainer.evaluate()["eval_loss"]
    if name != "ours":
        rows = [*rows, rows[-1]]

    with torch.no_grad():
        losses = [model(row["x"], row["labels"])["loss"] for row in rows]
    assert loss == pytest.approx(torch.stack(losses).mean().item())


def test_length_column_that_the_model_does_not_take_groups_samples_of_ours(library, tmp_path):
    """The tokens of a sample are as many as its number, and its column says the opposite."""
    name, api = library
    numbers = list(range(1, 9))
    data = Dataset.from_dict(
        {
            "input_ids": [[number] * number for number in numbers],
            "n": [100 - number for number in numbers],
        }
    )

    def collate(samples):
        rows = [torch.tensor(sample["input_ids"]) for sample in samples]
        return {"input_ids": nn.utils.rnn.pad_sequence(rows, batch_first=True)}

    args = arguments(
        api,
        tmp_path,
        per_device_train_batch_size=8,
        train_sampling_strategy="group_by_length",
        length_column_name="n",
    )
    trainer = api.Trainer(Tokens(), args, train_dataset=data, data_collator=collate)
    (batch,) = trainer.get_train_dataloader()
    longest_first = batch["input_ids"][:, 0].tolist()
    assert longest_first[0] == (1 if name == "ours" else 8)
