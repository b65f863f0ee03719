"""How tokens are generated in evaluation and prediction, for sequence-to-sequence models."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(init=False, repr=False, eq=False)
class GenerationArguments:
    """The fields that `transformers.Seq2SeqTrainingArguments` has beside those of `TrainingArguments`."""

    sortish_sampler: bool = field(
        default=False,
        metadata={
            "help": "Put training samples of similar length into one batch, in an order that is random otherwise.",
            "becomes": "`LengthGroupedSampler` of the training data",
        },
    )
    predict_with_generate: bool = field(
        default=False,
        metadata={
            "help": "Let evaluation and prediction generate tokens, and give these to compute_metrics.",
            "becomes": "a call of the model's `generate` for each evaluated batch",
        },
    )
    generation_max_length: int | None = field(
        default=None,
        metadata={
            "help": "Longest generated sequence, in tokens; unset is what the model's generation config says.",
            "becomes": "`generate(max_length=)`",
        },
    )
    generation_num_beams: int | None = field(
        default=None,
        metadata={
            "help": "Beams to search with when generating; unset is what the model's generation config says.",
            "becomes": "`generate(num_beams=)`",
        },
    )
    generation_config: str | Path | dict[str, Any] | Any | None = field(
        default=None,
        metadata={
            "help": "Settings of generation in place of the model's: a JSON file, the folder of one, or JSON itself.",
            "becomes": "`model.generation_config`",
        },
    )
