"""Outputs that a model may return, and errors for others."""

import re
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.nn import functional
from transformers import PreTrainedTokenizerFast

from helpers.trainer.tiny_trainings import Tiny, files, same, tiny, trained, trainer, weights
from lightrainer import default_data_collator


def returning(form):
    """A model whose `forward` returns `form(loss, logits)`."""

    class Returning(Tiny):
        def forward(self, x, labels=None):
            logits = self.logits(x)
            return form(
                None if labels is None else functional.cross_entropy(logits, labels), logits
            )

    torch.manual_seed(3)
    return Returning()


# What is returned -> what the message must say of it.
UNUSABLE = {
    "nothing": (lambda loss, logits: None, "NoneType"),
    "a dict without a loss": (
        lambda loss, logits: {"logits": logits, "hidden": logits},
        "logits, hidden",
    ),
    "a loss that is None": (lambda loss, logits: {"loss": None, "logits": logits}, "loss"),
    "an object without a loss": (lambda loss, logits: SimpleNamespace(scores=logits), "scores"),
    "an empty tuple": (lambda loss, logits: (), "tuple"),
    "the logits alone": (lambda loss, logits: logits, "(4, 3)"),
    "a number": (lambda loss, logits: {"loss": loss.item()}, "float"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_unusable_outputs(tmp_path, name):
    """The message says what the model returned, and what is expected; nothing is written."""
    form, word = UNUSABLE[name]
    with pytest.raises((ValueError, TypeError)) as error:
        trainer(tmp_path, model=returning(form)).train()
    assert word in str(error.value), error.value
    assert re.search(r"loss", str(error.value))
    assert re.search(
        r"Expected|Return|has to be|requires_grad|not a torch.Tensor", str(error.value)
    ), error.value
    assert files(tmp_path) == []


# --- the config of a model


@dataclass(frozen=True)
class FrozenConfig:
    hidden_size: int = 8


CONFIGS = {
    "dict": {"hidden_size": 8},
    "text": "tiny",
    "frozen dataclass": FrozenConfig(),
    "named tuple": namedtuple("Sizes", "hidden_size")(8),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_config_that_takes_no_attributes_is_kept(tmp_path, name):
    """Neither `use_cache` nor the special tokens of a tokenizer can be set there."""
    model = tiny()
    model.config = CONFIGS[name]
    before = weights(model)
    words = Tokenizer(WordLevel({"<end>": 0, "a": 1}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>")
    trained(
        tmp_path,
        model=model,
        processing_class=tokenizer,
        data_collator=default_data_collator,
        save_strategy="steps",
        report_to="tensorboard",
    )
    assert not same(before, weights(model))
    assert model.config is CONFIGS[name]


# --- where the model comes from


@pytest.mark.parametrize("compiled", [False, True])
def test_user_model_is_the_one_that_is_trained(tmp_path, compiled):
    model = tiny()
    before = weights(model)
    made = trained(tmp_path, model=torch.compile(model, backend="eager") if compiled else model)
    assert not same(before, weights(model))
    made.save_model()
    from safetensors.torch import load_file

    assert same(load_file(tmp_path / "model.safetensors"), weights(model))
