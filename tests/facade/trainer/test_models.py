"""Outputs that a model may return, and errors for others."""

import re
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from tiny import Tiny, files, losses, same, tiny, trainer, weights
from torch.nn import functional

from lightrainer import Trainer


@dataclass
class Outputs:
    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    hidden: torch.Tensor | None = None


def returning(form):
    """A model whose `forward` returns `form(loss, logits)`."""

    class Returning(Tiny):
        def forward(self, x, labels=None):
            logits = self.logits(x)
            return form(None if labels is None else functional.cross_entropy(logits, labels), logits)

    torch.manual_seed(3)
    return Returning()


def test_the_loss_of_a_function_and_a_model_without_one(tmp_path):
    """`compute_loss_func` and an overridden `compute_loss` need no loss from the model."""

    def loss_of(outputs, labels, num_items_in_batch=None):
        return functional.cross_entropy(outputs["logits"], labels)

    class Own(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = functional.cross_entropy(outputs["logits"], labels)
            return (loss, outputs) if return_outputs else loss

    def lossless():
        return returning(lambda loss, logits: {"logits": logits})

    by_function = trainer(tmp_path, model=lossless(), compute_loss_func=loss_of)
    by_function.train()
    by_method = trainer(tmp_path, Own, model=lossless())
    by_method.train()
    usual = trainer(tmp_path)
    usual.train()
    assert losses(by_function) == losses(by_method) == losses(usual)
    assert by_function.evaluate()["eval_loss"] == by_method.evaluate()["eval_loss"] == usual.evaluate()["eval_loss"]


# What is returned -> what the message must say of it.
UNUSABLE = {
    "nothing": (lambda loss, logits: None, "NoneType"),
    "a dict without a loss": (lambda loss, logits: {"logits": logits, "hidden": logits}, "logits, hidden"),
    "an empty dict": (lambda loss, logits: {}, "dict"),
    "a loss that is None": (lambda loss, logits: {"loss": None, "logits": logits}, "loss"),
    "an object without a loss": (lambda loss, logits: SimpleNamespace(scores=logits), "scores"),
    "a dataclass whose loss is None": (lambda loss, logits: Outputs(logits=logits), "logits"),
    "an empty tuple": (lambda loss, logits: (), "tuple"),
    "the logits alone": (lambda loss, logits: logits, "(4, 3)"),
    "a number": (lambda loss, logits: {"loss": loss.item()}, "float"),
    "a text": (lambda loss, logits: "a text", "str"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_unusable_outputs(tmp_path, name):
    """The message says what the model returned, and what is expected; nothing is written."""
    form, word = UNUSABLE[name]
    with pytest.raises((ValueError, TypeError)) as error:
        trainer(tmp_path, model=returning(form)).train()
    assert word in str(error.value), error.value
    assert re.search(r"loss", str(error.value))
    assert re.search(r"Expected|Return|has to be|requires_grad", str(error.value)), error.value
    assert files(tmp_path) == []


# --- where the model comes from


def test_a_function_that_makes_the_model(tmp_path):
    """It is called for the constructor and again for each training, and may want to know the trial."""
    seen = []

    def model_init(trial):
        seen.append(trial)
        return tiny()

    made = trainer(tmp_path, model_init=model_init)
    assert isinstance(made.model, Tiny)
    made.train()
    made.train(trial={"learning_rate": 0.1})
    assert seen == [None, None, {"learning_rate": 0.1}]


@pytest.mark.parametrize("compiled", [False, True])
def test_the_model_of_the_user_is_the_one_that_is_trained(tmp_path, compiled):
    model = tiny()
    before = weights(model)
    made = trainer(tmp_path, model=torch.compile(model, backend="eager") if compiled else model)
    made.train()
    assert not same(before, weights(model))
    made.save_model()
    from safetensors.torch import load_file

    assert same(load_file(tmp_path / "model.safetensors"), weights(model))
