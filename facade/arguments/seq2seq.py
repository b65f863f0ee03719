"""The class that users of sequence-to-sequence models fill in."""

import os
from dataclasses import dataclass
from typing import Any

from .fields import GenerationArguments
from .training_arguments import TrainingArguments
from .unknown import understand_old_names


# Dataclasses gather fields from the last base to the first: those about generation come last, as documented.
@understand_old_names
@dataclass(repr=False)
class Seq2SeqTrainingArguments(GenerationArguments, TrainingArguments):
    """As `transformers.Seq2SeqTrainingArguments`, but `sortish_sampler` has an effect.

    The reference accepts `sortish_sampler` and never reads it. Here it does what its documentation says, for the
    training data of any kind that has a length: batches of samples of similar length, as with
    `train_sampling_strategy="group_by_length"`. Evaluation and prediction keep the order of their data.

    `generation_max_length`, `generation_num_beams` and `generation_config` are read where `predict_with_generate` is
    True. A `generation_config` may be an object such as `transformers.GenerationConfig`, a dict, a JSON file, the
    folder of a `generation_config.json`, or, for models that load theirs from the Hub, a name on the Hub; on a command
    line JSON text is a dict too. `Seq2SeqTrainer` reads and checks it when it is made.

    Raises:
        ValueError, TypeError, NotImplementedError, FileNotFoundError: See `TrainingArguments`.
    """

    _VALID_DICT_FIELDS = [*TrainingArguments._VALID_DICT_FIELDS, "generation_config"]

    def __post_init__(self) -> None:
        # A command line makes a Path of all text, and so of JSON too.
        if isinstance(self.generation_config, os.PathLike) and os.fspath(self.generation_config).startswith("{"):
            self.generation_config = os.fspath(self.generation_config)
        super().__post_init__()

    def to_dict(self) -> dict[str, Any]:
        """As `transformers.Seq2SeqTrainingArguments.to_dict`, but a path is text, and so always fit for JSON.

        Returns:
            All fields by name; `generation_config` as a dict where it is an object.
        """
        values = super().to_dict()
        config = values["generation_config"]
        if isinstance(config, os.PathLike):
            values["generation_config"] = os.fspath(config)
        elif hasattr(config, "__dict__"):
            values["generation_config"] = dict(vars(config))
        return values
