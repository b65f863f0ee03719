"""Facts read from the signatures of a model equal those that the reference reads."""

import functools

import pytest
from torch import nn

from helpers.lightning.tiny_modules import Net
from lightrainer.lightning_modules.models.signatures import (
    accepted_arguments,
    accepts_loss_kwargs,
    can_return_loss,
    find_labels,
)


class TakesAnything(Net):
    def forward(self, x, **more):
        return super().forward(x)


class SaysYes(Net):
    accepts_loss_kwargs = True


class SaysNo(TakesAnything):
    accepts_loss_kwargs = False


@pytest.mark.parametrize(
    ("cls", "expected"), [(Net, False), (TakesAnything, True), (SaysYes, True), (SaysNo, False)]
)
def test_models_that_take_the_number_of_items(cls, expected):
    """The model's own attributes take precedence over the signature of `forward`."""
    assert accepts_loss_kwargs(cls()) is expected


NAMES = (
    "GPT2LMHeadModel T5ForConditionalGeneration CLIPModel ViTForImageClassification Wav2Vec2ForCTC "
    "BertModel"
)
NAMES += (
    " BertForSequenceClassification BertForQuestionAnswering BertForNextSentencePrediction "
    "BertForPreTraining"
)


@pytest.mark.parametrize("name", NAMES.split())
def test_labels_and_losses_are_found_as_in_the_reference(name):
    transformers = pytest.importorskip("transformers")
    from transformers.utils import generic

    cls = getattr(transformers, name)
    assert find_labels(cls) == generic.find_labels(cls)
    assert can_return_loss(cls) == generic.can_return_loss(cls)


def test_labels_of_models_of_the_user():
    class ForQuestionAnswering(nn.Module):
        def forward(self, x, start_positions=None, end_positions=None, my_label_ids=None): ...

    class Spans(nn.Module):
        forward = ForQuestionAnswering.forward

    class ReturnsLoss(nn.Module):
        def forward(self, x, return_loss=True): ...

    class MayReturnLoss(nn.Module):
        def forward(self, x, return_loss=None): ...

    assert find_labels(Net) == ["labels"]
    assert find_labels(ForQuestionAnswering) == [
        "start_positions",
        "end_positions",
        "my_label_ids",
    ]
    assert find_labels(Spans) == ["my_label_ids"]
    assert can_return_loss(ReturnsLoss)
    assert not can_return_loss(MayReturnLoss)
    assert not can_return_loss(Net)


class Steps:
    def new(self, model, inputs, num_items_in_batch=None): ...
    def old(self, model, inputs): ...
    def anything(self, *positional, **keywords): ...
    @staticmethod
    def static(model, num_items_in_batch): ...
    @functools.wraps(old)
    def wrapped(self, *positional, **keywords): ...


ITEMS = {"num_items_in_batch": 3}
FUNCTIONS = [
    (Steps().new, ITEMS),
    (Steps().old, {}),
    (Steps().anything, ITEMS),
    (Steps().static, ITEMS),
    (Steps().wrapped, {}),
    (lambda model, inputs: None, {}),
    (lambda model, **more: None, ITEMS),
    (functools.partial(Steps().new, "model"), ITEMS),
    (functools.partial(Steps().old, "model"), {}),
]


@pytest.mark.parametrize(("function", "expected"), FUNCTIONS)
def test_functions_are_given_the_arguments_that_they_take(function, expected):
    assert accepted_arguments(function, **ITEMS) == expected
    assert accepted_arguments(function) == {}
