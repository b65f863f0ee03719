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
from transformers import (
    PreTrainedTokenizerFast,
    SegformerConfig,
    SegformerForSemanticSegmentation,
)

from helpers.trainer.tiny_trainings import (
    Tiny,
    files,
    make_trainer,
    same_bits,
    tiny,
    trained_trainer,
    weights,
)
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
        make_trainer(tmp_path, model=returning(form)).train()
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
    trained_trainer(
        tmp_path,
        model=model,
        processing_class=tokenizer,
        data_collator=default_data_collator,
        save_strategy="steps",
        report_to="tensorboard",
    )
    assert not same_bits(before, weights(model))
    assert model.config is CONFIGS[name]


# --- where the model comes from


@pytest.mark.parametrize("compiled", [False, True])
def test_user_model_is_the_one_that_is_trained(tmp_path, compiled):
    model = tiny()
    before = weights(model)
    trainer = trained_trainer(
        tmp_path, model=torch.compile(model, backend="eager") if compiled else model
    )
    assert not same_bits(before, weights(model))
    trainer.save_model()
    from safetensors.torch import load_file

    assert same_bits(load_file(tmp_path / "model.safetensors"), weights(model))


class Street(SegformerForSemanticSegmentation):
    """A subclass with its own name."""


class Inside(torch.nn.Module):
    """A module of a script around a head of transformers."""

    def __init__(self, config):
        super().__init__()
        self.segmenter = SegformerForSemanticSegmentation(config)
        self.decode_head = self.segmenter.decode_head

    def forward(self, pixel_values, labels):
        return self.segmenter(pixel_values, labels)


def segmented(folder, size, ignored, model_class=SegformerForSemanticSegmentation, classes=3):
    """Train one step on 4 images, in micro-batches of `size`; `ignored` labels unlabelled pixels.

    Returns the loss and the norm of the gradient.
    """
    torch.manual_seed(0)
    config = SegformerConfig(
        num_encoder_blocks=1,
        depths=[1],
        sr_ratios=[1],
        hidden_sizes=[8],
        patch_sizes=[3],
        strides=[2],
        num_attention_heads=[1],
        mlp_ratios=[1],
        decoder_hidden_size=8,
        num_labels=classes,
        hidden_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
        drop_path_rate=0.0,
        semantic_loss_ignore_index=ignored,
    )
    model = model_class(config)
    # It would take the mean over the micro-batch.
    model.decode_head.batch_norm = torch.nn.Identity()

    samples = []
    for index in range(4):
        labels = torch.randint(0, 3, (8, 8))
        labels[: 2 * index] = ignored
        samples.append({"pixel_values": torch.randn(3, 8, 8), "labels": labels})

    trainer = make_trainer(
        folder,
        model=model,
        train_dataset=samples,
        max_steps=1,
        logging_steps=1,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=4 // size,
    )
    trainer.train()
    log = trainer.state.log_history[0]
    return log["loss"], log["grad_norm"]


@pytest.mark.parametrize("ignored", [255, -100])
def test_models_for_segmentation_weigh_labelled_pixels(tmp_path, ignored):
    whole = segmented(tmp_path / "whole", 4, ignored)
    assert segmented(tmp_path / "divided", 1, ignored) == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize(
    ("model_class", "classes"), [(Street, 3), (Inside, 3), (SegformerForSemanticSegmentation, 1)]
)
def test_heads_for_segmentation_in_classes_of_a_script(tmp_path, model_class, classes):
    """The loss of one class is a mean over all pixels, also the unlabelled ones."""
    whole = segmented(tmp_path / "whole", 4, 255, model_class, classes)
    divided = segmented(tmp_path / "divided", 1, 255, model_class, classes)
    assert divided == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize(
    ("quantizer", "words"),
    [
        ({"is_trainable": True}, "purely quantized models"),
        ({"is_qat_trainable": True}, "does not support training"),
    ],
)
def test_models_with_quantized_weights_are_refused(tmp_path, quantizer, words):
    model = tiny()
    model.is_quantized = True
    model.hf_quantizer = SimpleNamespace(**quantizer)
    with pytest.raises(ValueError, match=words):
        make_trainer(tmp_path, model=model)

    model.hf_quantizer = SimpleNamespace(is_trainable=True, is_qat_trainable=True)
    make_trainer(tmp_path, model=model)
