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
    "WithLMHead": "text-generation",
    "ForMaskedLM": "fill-mask",
    "WithLMHeadModel": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForQuestionAnsweringSimple": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "ForConditionalGeneration": "text2text-generation",
    "MTModel": "text2text-generation",
    "ForTextToText": "text2text-generation",
    "EncoderDecoderModel": "text2text-generation",
    "ForImageClassification": "image-classification",
    "ForImageClassificationWithTeacher": "image-classification",
    "ForImageSegmentation": "image-segmentation",
    "ForSegmentation": "image-segmentation",
    "ForSemanticSegmentation": "image-segmentation",
    "ForUniversalSegmentation": "image-segmentation",
    "ForObjectDetection": "object-detection",
    "ForAudioClassification": "audio-classification",
    "ForCTC": "automatic-speech-recognition",
    "ForSpeechSeq2Seq": "automatic-speech-recognition",
    "ForSpeechToText": "automatic-speech-recognition",
    "SpeechEncoderDecoderModel": "automatic-speech-recognition",
    "VisionEncoderDecoderModel": "image-text-to-text",
}
_OF_IMAGES: dict[str, str] = dict.fromkeys(("text-generation", "text2text-generation"), "image-text-to-text")
_OF_SOUND: dict[str, str] = {
    "text-classification": "audio-classification",
    "text2text-generation": "automatic-speech-recognition",
}
_SOUND_INPUTS = ("input_values", "input_features")


def task_of(model: Any) -> str | None:
    """The task of a model, from the last words of its class's name; None if they do not tell.

    What the words leave open is told by what the model is given: text, sound, or images.

    Args:
        model: the user's model, without wrappers.
    """
    name, config = type(model).__name__, getattr(model, "config", None)
    endings = sorted((ending for ending in _ENDINGS if name.endswith(ending)), key=len)
    if not endings:
        return None
    task = _ENDINGS[endings[-1]]  # the longest, as one may be the end of another
    given = getattr(model, "main_input_name", "")
    if given == "pixel_values" or hasattr(config, "vision_config"):
        return _OF_IMAGES.get(task, task)
    if given in _SOUND_INPUTS or hasattr(config, "audio_config"):
        return _OF_SOUND.get(task, task)
    return "table-question-answering" if name == "TapasForQuestionAnswering" else task
