"""Join all fields of the training arguments, in the documented order."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .argument import Argument, argument, declared, integer
from .readers import read_generation_config
from .result_fields import (
    CheckpointUseArguments,
    EvaluationArguments,
    HubArguments,
    LaterReportingArguments,
    OwnReportingArguments,
    ReportingArguments,
    SavingArguments,
)
from .system_fields import (
    DataArguments,
    DistributedArguments,
    LaterDataArguments,
    LaterDistributedArguments,
    OwnDataArguments,
    PlatformArguments,
    ScriptArguments,
)
from .training_fields import (
    ExecutionArguments,
    LaterExecutionArguments,
    OptimizationArguments,
    PrecisionArguments,
    RuleArguments,
    RunArguments,
)


# Dataclasses gather fields from the last base to the first, so read this list from its end. What
# later versions added comes last, and then what the reference does not have, so that the documented
# order of 5.3.0 stays as it is.
@dataclass(init=False, repr=False, eq=False)
class ArgumentFields(
    OwnDataArguments,
    RuleArguments,
    OwnReportingArguments,
    LaterDistributedArguments,
    LaterDataArguments,
    LaterReportingArguments,
    LaterExecutionArguments,
    ScriptArguments,
    DistributedArguments,
    DataArguments,
    PlatformArguments,
    CheckpointUseArguments,
    HubArguments,
    SavingArguments,
    EvaluationArguments,
    ReportingArguments,
    ExecutionArguments,
    PrecisionArguments,
    OptimizationArguments,
    RunArguments,
):
    """The fields of `transformers.TrainingArguments` and those of lightrainer alone: names,
    order, types, defaults.
    """


@dataclass(init=False, repr=False, eq=False)
class GenerationArguments:
    """The fields that `transformers.Seq2SeqTrainingArguments` has beside those of
    `TrainingArguments`.
    """

    sortish_sampler: bool = argument(
        False,
        "Put training samples of similar length into one batch.",
        maps_to="`LengthGroupedSampler(lengths=)`",
    )
    predict_with_generate: bool = argument(
        False, "Generate tokens in evaluation.", maps_to="the model's `generate`"
    )
    generation_max_length: int | None = argument(
        None,
        "Maximum length of generated sequences in tokens; by default the model's.",
        maps_to="`generate(max_length=)`",
        read=integer(low=1, remedy=" Leave it out for what the model's generation config says."),
    )
    generation_num_beams: int | None = argument(
        None,
        "Number of beams; by default the model's.",
        maps_to="`generate(num_beams=)`",
        read=integer(low=1, remedy=" 1 means no beam search."),
    )
    generation_config: str | Path | dict[str, Any] | Any | None = argument(
        None,
        "Settings of generation: JSON, its file, or the folder of one.",
        maps_to="`model.generation_config`",
        read=read_generation_config,
    )


ARGUMENTS: dict[str, Argument] = {
    item.name: declared(item) for item in (*fields(ArgumentFields), *fields(GenerationArguments))
}
"""What each argument holds, and its counterpart in Lightning, by name."""

CONCERNS: dict[str, tuple[str, tuple[type, ...]]] = {
    "run": ("Length of the training, batch size, output folder.", (RunArguments,)),
    "optimization": (
        "The optimizer, its learning rate, and the gradients.",
        (OptimizationArguments, RuleArguments),
    ),
    "precision": (
        "The number formats that the model computes in.",
        (PrecisionArguments,),
    ),
    "execution": (
        "Activation checkpointing, compilation, kernels.",
        (ExecutionArguments, LaterExecutionArguments),
    ),
    "reporting": (
        "Logs: contents, intervals, trackers.",
        (ReportingArguments, LaterReportingArguments, OwnReportingArguments),
    ),
    "evaluation": (
        "Evaluation: intervals, batches, inputs of the metrics.",
        (EvaluationArguments,),
    ),
    "saving": (
        "Checkpoints: intervals, contents, and resuming.",
        (SavingArguments, CheckpointUseArguments),
    ),
    "hub": ("Uploading to the Hugging Face Hub.", (HubArguments,)),
    "platform": ("Random seeds and the device.", (PlatformArguments,)),
    "data": (
        "Reading samples and batching them.",
        (DataArguments, LaterDataArguments, OwnDataArguments),
    ),
    "distributed": (
        "Training in several processes.",
        (DistributedArguments, LaterDistributedArguments),
    ),
    "script": (
        "Diagnostics, flags for scripts to read, and names kept for older scripts.",
        (ScriptArguments,),
    ),
    "generation": (
        "Generation in evaluation, for sequence-to-sequence models.",
        (GenerationArguments,),
    ),
}
"""The headings that fields stand under, in the help and in the documentation: what they hold,
and their classes.
"""
