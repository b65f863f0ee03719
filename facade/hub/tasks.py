"""Which task of the Hub a model is for, told by the name of its class."""

from __future__ import annotations

from typing import Any

TASK_NAMES = {
    "audio-classification": "Audio Classification",
    "automatic-speech-recognition": "Automatic Speech Recognition",
    "fill-mask": "Masked Language Modeling",
    "image-classification": "Image Classification",
    "image-segmentation": "Image Segmentation",
    "image-text-to-text": "Image-Text-to-Text",
    "multiple-choice": "Multiple Choice",
    "object-detection": "Object Detection",
    "question-answering": "Question Answering",
    "table-question-answering": "Table Question Answering",
    "text-classification": "Text Classification",
    "text-generation": "Causal Language Modeling",
    "text2text-generation": "Sequence-to-Sequence Language Modeling",
    "token-classification": "Token Classification",
    "zero-shot-image-classification": "Zero-Shot Image Classification",
}
"""The tasks, and how a card names them."""

_ENDINGS = {
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForMaskedLM": "fill-mask",
    "WithLMHeadModel": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForQuestionAnsweringSimple": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "ForImageClassification": "image-classification",
    "ForImageSegmentation": "image-segmentation",
    "ForSemanticSegmentation": "image-segmentation",
    "ForUniversalSegmentation": "image-segmentation",
    "ForObjectDetection": "object-detection",
    "ForAudioClassification": "audio-classification",
    "ForSpeechSeq2Seq": "automatic-speech-recognition",
    "ForCTC": "automatic-speech-recognition",
}
_BY_INPUT = {
    "input_ids": "text2text-generation",
    "input_features": "automatic-speech-recognition",
    "input_values": "automatic-speech-recognition",
    "pixel_values": "image-text-to-text",
}
"""What `...ForConditionalGeneration` does, by the main thing that it is given."""

_OF_TABLES = "Tapas"


def task_of(model: Any) -> str | None:
    """The task of a model, from the last words of its class's name; None if they do not tell.

    Args:
        model: the user's model, without wrappers.
    """
    name = type(model).__name__
    if name.startswith(_OF_TABLES) and name.endswith("ForQuestionAnswering"):
        return "table-question-answering"
    if name.endswith("ForConditionalGeneration"):
        return _BY_INPUT.get(getattr(model, "main_input_name", "input_ids"))
    # The longest ending, as one may be the end of another.
    endings = sorted((ending for ending in _ENDINGS if name.endswith(ending)), key=len)
    return _ENDINGS[endings[-1]] if endings else None
