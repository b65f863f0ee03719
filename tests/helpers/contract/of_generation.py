"""Settings of sequence-to-sequence models, in training and when they generate."""

from typing import Any

from helpers.contract.effects import Effect, Place, becomes, make
from helpers.trainer.plain_seq2seq import pad, pairs, plain
from lightrainer import Seq2SeqTrainer, Seq2SeqTrainingArguments


def _seq2seq(given: dict[str, Any], place: Place, data: Any = pairs) -> Any:
    parts = {
        "model": plain,
        "train_dataset": data,
        "eval_dataset": lambda: None,
        "data_collator": lambda: pad,
    }
    return make(
        given, place, kind=Seq2SeqTrainingArguments, trainer=lambda: Seq2SeqTrainer, **parts
    )


def _told(given: dict[str, Any], place: Place) -> list[tuple[int, int]]:
    """Length and beams that `generate` is called with, for one batch."""
    trainer = _seq2seq(given, place)
    trainer.predict(pairs(3))
    return [(call["max_length"], call["num_beams"]) for call in trainer.model.calls]


def _sampler(given: dict[str, Any], place: Place) -> str:
    """The sampler of a training."""
    items = [{"input_ids": [1] * length, "labels": [1]} for length in range(1, 9)]
    return type(_seq2seq(given, place, lambda: items)._get_train_sampler()).__name__


GENERATING = {"predict_with_generate": True}

ENTRIES: dict[str, Effect] = {
    "sortish_sampler": Effect(True, _sampler, becomes("RandomSampler", "LengthGroupedSampler")),
    "predict_with_generate": Effect(True, _told, becomes([], [(5, 1)])),
    "generation_max_length": Effect(3, _told, becomes([(5, 1)], [(3, 1)]), GENERATING),
    "generation_num_beams": Effect(2, _told, becomes([(5, 1)], [(5, 2)]), GENERATING),
    "generation_config": Effect({"max_length": 3}, _told, becomes([(5, 1)], [(3, 1)]), GENERATING),
}
