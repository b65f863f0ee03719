"""Tasks of the Hub, and the task of a model by its class name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

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
"""Names of tasks as a card shows them."""

_TASKS_BY_ENDING = {
    "EncoderDecoderModel": "text2text-generation",
    "ForAudioClassification": "audio-classification",
    "ForCTC": "automatic-speech-recognition",
    "ForCausalLM": "text-generation",
    "ForConditionalGeneration": "text2text-generation",
    "ForImageClassification": "image-classification",
    "ForImageClassificationWithTeacher": "image-classification",
    "ForImageSegmentation": "image-segmentation",
    "ForMaskedLM": "fill-mask",
    "ForMultipleChoice": "multiple-choice",
    "ForObjectDetection": "object-detection",
    "ForQuestionAnswering": "question-answering",
    "ForQuestionAnsweringSimple": "question-answering",
    "ForSegmentation": "image-segmentation",
    "ForSemanticSegmentation": "image-segmentation",
    "ForSequenceClassification": "text-classification",
    "ForSpeechSeq2Seq": "automatic-speech-recognition",
    "ForSpeechToText": "automatic-speech-recognition",
    "ForTextToText": "text2text-generation",
    "ForTokenClassification": "token-classification",
    "ForUniversalSegmentation": "image-segmentation",
    "LMHeadModel": "text-generation",
    "MTModel": "text2text-generation",
    "SpeechEncoderDecoderModel": "automatic-speech-recognition",
    "VisionEncoderDecoderModel": "image-text-to-text",
    "WithLMHead": "text-generation",
    "WithLMHeadModel": "fill-mask",
}
"""Tasks by the suffix of a class name in `transformers`."""

_TASKS_WITH_IMAGES = {
    "text-generation": "image-text-to-text",
    "text2text-generation": "image-text-to-text",
}
_TASKS_WITH_AUDIO = {
    "text-classification": "audio-classification",
    "text2text-generation": "automatic-speech-recognition",
}
_AUDIO_INPUTS = ("input_values", "input_features")


def task_of(model: nn.Module) -> str | None:
    """Return the task of a model from the suffix of its class name, or None.

    Ambiguous suffixes are resolved by the modality of the inputs: text, audio or images.

    Args:
        model: the user's model, without wrappers.
    """
    name = type(model).__name__
    if name == "TapasForQuestionAnswering":
        return "table-question-answering"

    # Use the longest suffix that matches: `LMHeadModel` is also the end of `WithLMHeadModel`.
    endings = [ending for ending in _TASKS_BY_ENDING if name.endswith(ending)]
    if not endings:
        return None
    task = _TASKS_BY_ENDING[max(endings, key=len)]

    # Classes for text, images and audio may have the same suffix.
    config = getattr(model, "config", None)
    main_input = getattr(model, "main_input_name", "")
    if main_input == "pixel_values" or hasattr(config, "vision_config"):
        return _TASKS_WITH_IMAGES.get(task, task)
    if main_input in _AUDIO_INPUTS or hasattr(config, "audio_config"):
        return _TASKS_WITH_AUDIO.get(task, task)
    return task
