"""Gradient accumulation is right in itself: a window of micro-batches is one batch of their
common size.
"""

import pytest
import torch

from helpers.parity.harness import Case, run
from helpers.parity.parity_datasets import pad, points, sentences
from helpers.parity.parity_models import Classifier, TokenModel, gpt2
from helpers.trainer.tiny_experts import mixture_of_experts

# Whole batches give the same items in the same order to 4 x 3 and to 1 x 12.
ARGUMENTS = {
    "optim": "sgd",
    "learning_rate": 0.1,
    "max_grad_norm": 0.0,
    "train_sampling_strategy": "sequential",
}


def token_case(model) -> Case:
    return Case(model, lambda: {"train_dataset": sentences(24), "data_collator": pad}, ARGUMENTS)


def gpt2_without_dropout():
    model = gpt2()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def balanced_experts():
    return mixture_of_experts(router_aux_loss_coef=1.0)


class WrappedExperts(torch.nn.Module):
    """Returns nothing but the loss of the model inside; it has the config of that model."""

    def __init__(self):
        super().__init__()
        self.experts = balanced_experts()
        self.config = self.experts.config

    def forward(self, input_ids, labels, **kwargs):
        outputs = self.experts(input_ids=input_ids, labels=labels, **kwargs)
        return {"loss": outputs.loss}


class ReturnsOutputsOfExperts(WrappedExperts):
    def forward(self, input_ids, labels, **kwargs):
        return self.experts(input_ids=input_ids, labels=labels, **kwargs)


def passes_items(base):
    class PassesItems(base):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(**inputs, num_items_in_batch=num_items_in_batch)["loss"]

    return PassesItems


def counts_items(base):
    class CountsItems(base):
        """Computes a mean over the micro-batch, with its own count of the labels."""

        def compute_loss(self, model, inputs, return_outputs=False):
            items = inputs["labels"][..., 1:].ne(-100).sum()
            return model(**inputs, num_items_in_batch=items)["loss"]

    return CountsItems


def same_sentences():
    """Rows that are all the same, so that routers are balanced alike in each micro-batch."""
    row = torch.randint(0, 32, (8,), generator=torch.Generator().manual_seed(1))
    return {"train_dataset": [{"input_ids": row, "labels": row}] * 24}


def largest_difference(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    return max(float((left[name] - right[name]).abs().max()) for name in left)


CASES = {
    "number of items": token_case(lambda: TokenModel(dropout=0.0)),
    "gpt2": token_case(gpt2_without_dropout),
    "gpt2, smoothed labels": (
        token_case(gpt2_without_dropout).but(arguments={"label_smoothing_factor": 0.1})
    ),
    "mixture of experts": Case(balanced_experts, same_sentences, ARGUMENTS),
    "mixture of experts, in a module": Case(WrappedExperts, same_sentences, ARGUMENTS),
    "mixture of experts, its outputs returned by a module": (
        Case(ReturnsOutputsOfExperts, same_sentences, ARGUMENTS)
    ),
    "mixture of experts, items passed by an override": (
        Case(balanced_experts, same_sentences, ARGUMENTS, subclass=passes_items)
    ),
    "mixture of experts, items counted by an override": (
        Case(balanced_experts, same_sentences, ARGUMENTS, subclass=counts_items)
    ),
    "mean loss": Case(
        lambda: Classifier(dropout=0.0), lambda: {"train_dataset": points(24)}, ARGUMENTS
    ),
}


def both(api, case: Case, folder):
    window = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 4}
    whole = {"per_device_train_batch_size": 12, "gradient_accumulation_steps": 1}
    return [
        run(api, case.but(arguments=each), folder / str(index))
        for index, each in enumerate((window, whole))
    ]


@pytest.mark.parametrize("name", CASES)
def test_accumulation_of_4_equals_a_batch_of_4_times_the_size(ours, tmp_path, name):
    """Plain SGD, so that a gradient wrong by a factor cannot hide: weights, norms and losses
    agree to 1e-6.
    """
    window, whole = both(ours, CASES[name], tmp_path)
    assert window.state["global_step"] == whole.state["global_step"] == 4
    assert largest_difference(window.weights, whole.weights) < 1e-6
    for left, right in zip(window.history[:-1], whole.history[:-1], strict=True):
        assert left["grad_norm"] == pytest.approx(right["grad_norm"], rel=1e-5)
        assert left["loss"] == pytest.approx(right["loss"], rel=1e-5)


class Untold(TokenModel):
    """Is not told the number of items: its loss is the mean of its micro-batch."""

    accepts_loss_kwargs = False


class Unlabelled(Untold):
    """Its labels have another name, so that the rows of a micro-batch count."""

    def forward(self, input_ids, targets):
        return super().forward(input_ids, labels=targets)


def unlabelled(samples):
    batch = pad(samples)
    return {"input_ids": batch["input_ids"], "targets": batch["labels"]}


def test_accumulation_weighs_a_mean_by_its_labels(ours, tmp_path):
    window, whole = both(ours, token_case(lambda: Untold(dropout=0.0)), tmp_path)
    assert largest_difference(window.weights, whole.weights) < 1e-6


def test_accumulation_weighed_by_rows_gives_another_gradient(ours, tmp_path):
    """Negative control: where the labels cannot be found, their different numbers cannot be made
    up for.
    """
    case = token_case(lambda: Unlabelled(dropout=0.0))
    case = case.but(
        data=lambda: {"train_dataset": sentences(24), "data_collator": unlabelled},
        arguments={"remove_unused_columns": False},
    )
    window, whole = both(ours, case, tmp_path)
    assert largest_difference(window.weights, whole.weights) > 1e-5


class Ranker(torch.nn.Module):
    """Ranks the documents of each query, as rerankers with listwise losses do: rows of different
    lengths, in lists.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.score = torch.nn.Linear(4, 1)

    def forward(self, labels, query, documents):
        losses = []
        for targets, features in zip(labels, documents, strict=True):
            scores = self.score(features).squeeze(-1)
            losses.append(torch.nn.functional.cross_entropy(scores[None], targets[None]))
        return {"loss": torch.stack(losses).mean()}


def queries(count: int) -> list[dict]:
    torch.manual_seed(1)
    samples = []
    for index in range(count):
        size = 2 + index % 5
        labels = torch.rand(size).softmax(-1)
        documents = torch.randn(size, 4)
        samples.append({"labels": labels, "query": f"q{index}", "documents": documents})
    return samples


def keep_lists(samples):
    return {name: [sample[name] for sample in samples] for name in samples[0]}


RANKING = Case(
    Ranker,
    lambda: {
        "train_dataset": queries(24),
        "data_collator": keep_lists,
    },
    {**ARGUMENTS, "remove_unused_columns": False},
)


def test_accumulation_of_lists_weighs_by_rows(ours, tmp_path):
    """Not by the documents of the first query, which is the first tensor of a batch."""
    window, whole = both(ours, RANKING, tmp_path)
    assert largest_difference(window.weights, whole.weights) < 1e-6
