"""Samples for any class of transformers: what its `forward` takes, and labels of the kind of its
loss.
"""

import inspect
import re

import torch
from torch import Tensor
from transformers import PreTrainedModel

from helpers.promises.small_models import END_OF_TEXT, FRAMES, IMAGE, LENGTH, VOCABULARY

SAMPLES = 8
"""Samples of one optimizer step."""

FRAMES_OF_AUDIO = 6
"""What the convolutions of models of audio make of 2,000 values."""

Sample = dict[str, Tensor]

SHAPES = {
    r"AST.*": (32, 16),
    r"(Timesformer|VideoMAE|Vivit|VJEPA2).*": (FRAMES, 3, IMAGE, IMAGE),
    r".*(pixel_values|pixel_values_videos)": (3, IMAGE, IMAGE),
    r"Whisper.*": (8, 32),
    r"Speech2Text.*": (32, 8),
    r"Wav2Vec2Bert.*": (16, 16),
    r".*XVector input_values": (8000,),
    r".*input_values": (2000,),
}
"""Class and main input, as a regular expression -> the shape of a sample; the first one that
fits counts.
"""

WITH_IMAGES = r"(Blip|Git|Vilt)For.*"
"""Classes of text that need an image besides."""

HEADS_OF_TOKENS = (
    "CausalLM",
    "LMHeadModel",
    "MaskedLM",
    "ConditionalGeneration",
    "TokenClassification",
    "PreTraining",
)
HEADS_OF_ROWS = (
    "Classification",
    "ClassificationWithTeacher",
    "NextSentencePrediction",
    "XVector",
)


def tokens(generator: torch.Generator, *shape: int) -> Tensor:
    """Return token ids that are none of the special ones."""
    return torch.randint(5, VOCABULARY - 4, shape, generator=generator)


def make_inputs(model: PreTrainedModel, parameters: set[str], generator: torch.Generator) -> Sample:
    """Return the inputs of one sample without labels, by the parameters of `forward`."""
    inputs: Sample = {}
    name = type(model).__name__
    if "input_ids" in parameters:
        inputs["input_ids"] = tokens(generator, LENGTH)
        inputs["input_ids"][-1] = END_OF_TEXT
        if "attention_mask" in parameters:
            inputs["attention_mask"] = torch.ones(LENGTH, dtype=torch.long)
        if "token_type_ids" in parameters:
            inputs["token_type_ids"] = torch.zeros(LENGTH, dtype=torch.long)
        if "bbox" in parameters:
            inputs["bbox"] = torch.tensor([1, 2, 3, 4]).repeat(LENGTH, 1)
        if re.fullmatch(WITH_IMAGES, name):
            inputs["pixel_values"] = torch.randn(3, IMAGE, IMAGE, generator=generator)
        return inputs
    for pattern, shape in SHAPES.items():
        if re.fullmatch(pattern, f"{name} {model.main_input_name}"):
            return {model.main_input_name: torch.randn(shape, generator=generator)}
    raise NotImplementedError(f"no sample for a model whose main input is {model.main_input_name}")


def counted(labels: Tensor, index: int, *, uneven: bool) -> Tensor:
    """Leave out the first label, as causal language models do, and with `uneven` fewer in each
    further sample.
    """
    labels = labels.clone()
    left_out = max(LENGTH - 2 - index, 1) if uneven else 1
    labels[:left_out] = -100
    return labels


def make_labels(
    head: str, parameters: set[str], index: int, generator: torch.Generator, *, uneven: bool
) -> Sample:
    """Return the labels of one sample, by the part of the name of a class after `For`."""
    if "start_positions" in parameters:
        positions = torch.randint(0, LENGTH, (2,), generator=generator)
        return {"start_positions": positions[0], "end_positions": positions[1]}
    if head.endswith("TokenClassification"):
        return {
            "labels": counted(
                torch.randint(0, 2, (LENGTH,), generator=generator), index, uneven=uneven
            )
        }
    if head.endswith("AudioFrameClassification"):
        return {"labels": torch.rand(FRAMES_OF_AUDIO, 2, generator=generator)}
    if head.endswith("SemanticSegmentation"):
        return {"labels": torch.randint(0, 2, (IMAGE, IMAGE), generator=generator)}
    if head.endswith(("MultipleChoice", *HEADS_OF_ROWS)):
        return {"labels": torch.randint(0, 2, (), generator=generator)}
    if head.endswith(HEADS_OF_TOKENS):
        labels = {"labels": counted(tokens(generator, LENGTH), index, uneven=uneven)}
        for name in ("next_sentence_label", "sentence_order_label"):
            if name in parameters:
                labels[name] = torch.randint(0, 2, (), generator=generator)
        return labels
    raise NotImplementedError(f"no labels for a head called {head}")


def make_samples(model: PreTrainedModel, *, uneven: bool) -> list[Sample]:
    """Return the samples of one optimizer step; with `uneven` their numbers of labels that count
    differ.
    """
    parameters = set(inspect.signature(model.forward).parameters)
    head = type(model).__name__.rpartition("For")[2]
    generator = torch.Generator().manual_seed(3)
    samples = []
    for index in range(SAMPLES):
        inputs = make_inputs(model, parameters, generator)
        if head == "MultipleChoice":
            inputs = {name: torch.stack([value, value.flip(0)]) for name, value in inputs.items()}
        samples.append({**inputs, **make_labels(head, parameters, index, generator, uneven=uneven)})
    return samples
