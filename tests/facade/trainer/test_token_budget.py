"""Trainings on batches of a number of tokens."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import IterableDataset

from helpers.trainer.tiny_trainings import make_trainer
from lightrainer import DataCollatorWithPacking

LENGTHS = [(7 * i * i) % 23 + 1 if i % 3 == 0 else 1 + i % 4 for i in range(40)]
BUDGET = {
    "train_sampling_strategy": "token_budget",
    "max_tokens_per_batch": 48,
    "per_device_train_batch_size": 8,
}


class Tagger(nn.Module):
    """A label for each token; divides by the items of the window."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.out = nn.Embedding(5, 4), nn.Linear(4, 3)
        self.shapes = []

    def forward(self, input_ids, labels, num_items_in_batch=None, **kwargs):
        self.shapes.append(tuple(input_ids.shape))
        logits = self.out(torch.tanh(self.embedding(input_ids)))
        total = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return {
            "loss": (
                total
                / ((labels != -100).sum() if num_items_in_batch is None else num_items_in_batch)
            )
        }


def padded(samples):
    rows = [torch.tensor(sample["input_ids"]) for sample in samples]
    ids, labels = (nn.utils.rnn.pad_sequence(rows, True, value) for value in (0, -100))
    return {"input_ids": ids, "labels": labels.where(labels == -100, labels % 3)}


def texts():
    return [
        {"input_ids": [1 + (i + k) % 4 for k in range(length)]} for i, length in enumerate(LENGTHS)
    ]


def made(folder, **changes):
    parts = {
        "model": Tagger(),
        "train_dataset": texts(),
        "data_collator": padded,
        "eval_dataset": None,
    }
    return make_trainer(
        folder, **{**parts, **BUDGET, "optim": "sgd", "learning_rate": 0.5, **changes}
    )


def test_token_budget_batches_stay_within_the_budget(tmp_path):
    """As a loop by hand that divides by all labels of a window of two uneven batches; not as one
    over batch means.
    """
    ours = made(
        tmp_path, gradient_accumulation_steps=2, num_train_epochs=2, lr_scheduler_type="constant"
    )
    batches = [
        padded([texts()[i] for i in batch]) for batch in ours.get_train_dataloader().batch_sampler
    ]
    result = ours.train()
    shapes = ours.model.shapes
    assert all(rows * columns <= 48 for rows, columns in shapes)
    assert len(shapes) == 2 * len(batches)
    assert len({rows for rows, _ in shapes}) > 3
    assert sorted(shapes[: len(batches)]) == sorted(shapes[len(batches) :])
    assert result.metrics["train_samples_per_second"] == pytest.approx(
        80 / result.metrics["train_runtime"], rel=0.02
    )

    def by_hand(over_items):
        model, weights = Tagger(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for start in range(0, len(batches), 2):
            window = batches[start : start + 2]
            items = sum((batch["labels"] != -100).sum() for batch in window)
            for batch in window:
                loss = model(**batch, num_items_in_batch=items if over_items else None)["loss"]
                (loss if over_items else loss / len(window)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            weights.append(model.out.weight.detach().clone())
        return weights[-1]

    once = made(tmp_path / "once", gradient_accumulation_steps=2, lr_scheduler_type="constant")
    once.train()
    torch.testing.assert_close(
        once.model.out.weight.detach().cpu(), by_hand(True), rtol=1e-5, atol=1e-6
    )
    assert not torch.allclose(by_hand(True), by_hand(False), atol=1e-4)


@pytest.mark.parametrize("step", [2, 5])
def test_token_budget_resumes_in_the_middle_of_an_epoch_with_the_same_bits(tmp_path, step):
    options = {
        "save_strategy": "steps",
        "save_steps": 1,
        "num_train_epochs": 2,
        "gradient_accumulation_steps": 3,
    }
    whole = made(tmp_path, **options)
    whole.train()
    resumed = made(tmp_path / "again", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    batches = whole.get_train_dataloader().batch_sampler
    each = -(-len(batches) // 3)
    epoch, windows = divmod(step, each)
    assert resumed.model.shapes == whole.model.shapes[epoch * len(batches) + 3 * windows :]
    assert torch.equal(resumed.model.out.weight, whole.model.out.weight)
    with pytest.raises(ValueError, match=r"max_tokens_per_batch=60, but 48 when .* was written"):
        made(tmp_path / "other", **options, max_tokens_per_batch=60).train(
            str(tmp_path / f"checkpoint-{step}")
        )


def test_samples_are_capped_by_a_batch_size_of_the_user(tmp_path):
    for size, expected in ((8, 12), (3, 3)):
        capped = made(tmp_path, per_device_train_batch_size=size, max_tokens_per_batch=120)
        assert max(map(len, capped.get_train_dataloader().batch_sampler)) == expected


class Endless(IterableDataset):
    def __iter__(self):
        yield from texts()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"max_tokens_per_batch": 22},
            "max_tokens_per_batch=22 is too small for .* sample 6 has 23 tokens.*Raise it",
        ),
        (
            {"train_dataset": Endless(), "max_steps": 3},
            r"train_dataset \(Endless\) is a stream, but .*'token_budget' needs the length",
        ),
        ({"auto_find_batch_size": True}, "auto_find_batch_size=True and .* cannot be combined"),
        (
            {"train_sampling_strategy": "random"},
            "'random' with max_tokens_per_batch=48: .*both or neither",
        ),
        ({"max_tokens_per_batch": 0}, "max_tokens_per_batch=0 must be at least 1"),
        ({"accelerator_config": {"split_batches": True}}, "makes batches of different sizes"),
    ],
)
def test_token_budget_that_cannot_be_is_refused_before_the_training(tmp_path, wrong, message):
    with pytest.raises(ValueError, match=message):
        made(tmp_path, **wrong).train()


class Packed(Tagger):
    def forward(self, input_ids, labels, position_ids, attention_mask, **kwargs):
        assert attention_mask.shape == (len(input_ids), 1, *[input_ids.shape[1]] * 2)
        return super().forward(
            input_ids, labels % 3 * (labels != -100) - 100 * (labels == -100), **kwargs
        )


def test_packed_documents_train_and_a_mask_of_each_counts_no_tokens(tmp_path):
    """The sum of such a mask is a large negative number."""
    options = {"include_num_input_tokens_seen": "non_padding", "train_sampling_strategy": "random"}
    ours = made(
        tmp_path,
        model=Packed(),
        data_collator=DataCollatorWithPacking(24),
        max_tokens_per_batch=None,
        **options,
    )
    ours.train()
    assert sum(rows for rows, _ in ours.model.shapes) < len(LENGTHS)
    assert ours.state.num_input_tokens_seen == sum(
        rows * columns for rows, columns in ours.model.shapes
    )
