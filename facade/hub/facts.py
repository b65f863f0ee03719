"""Facts of a training for its model card: model, task, data, arguments."""

from __future__ import annotations

import os
import re
from dataclasses import MISSING, dataclass, fields, replace
from itertools import zip_longest
from typing import Any

import torch

from ...lightning_modules.common.libraries import is_instance
from ...lightning_modules.data.lengths import has_length
from ...lightning_modules.models import inspection
from ..arguments.parallelism import data_ranks
from .repository import is_repository_name

_ON_THE_HUB = re.compile(r"^hf://datasets/(?P<name>.+?)@")
_BUILDERS = {
    "arrow",
    "audiofolder",
    "csv",
    "generator",
    "imagefolder",
    "json",
    "pandas",
    "parquet",
    "spark",
    "sql",
    "text",
    "videofolder",
    "webdataset",
    "xml",
}
"""Generic builders of `datasets`, which do not name a dataset."""


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """A dataset as named on a model card."""

    name: str
    """Displayed name."""
    tag: str | None
    """Identifier on the Hub; None for a name only, which gives neither link nor metadata."""
    config: str | None = None
    split: str | None = None
    args: Any = None
    """Further arguments of its loading."""
    prefix: str = ""
    """Prefix of its metrics, `name_`, if several sets are evaluated."""


OWN_TAGS = ("generated_from_trainer", "lightrainer")


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """Snapshot of a training, so that a thread can write the card meanwhile."""

    model_name: str
    model_class: str
    library: str
    """Library that loads the model: `transformers`, `peft`, or `lightrainer`."""
    parameters: int
    trainable: int
    """Number of trained parameters."""
    base_model: str | None
    """Name on the Hub; None for a model trained from scratch or from local files."""
    language: tuple[str, ...]
    license: str | None
    tags: tuple[str, ...]
    tasks: tuple[str, ...]
    """Identifiers of tasks on the Hub."""
    sources: tuple[DataSource, ...]
    """Datasets that the metrics were measured on."""
    training_sources: tuple[DataSource, ...]
    train_samples: int | None
    eval_samples: int | None
    settings: dict[str, str]
    """Arguments that affect the result, with values."""
    log_history: tuple[dict[str, Any], ...]
    chosen_step: int | None
    """Step of the saved model; None for the last one."""
    steps: int
    """Optimizer steps taken."""


def facts_of(trainer: Any, size: tuple[int, int], **given: Any) -> CardFacts:
    """Collect the facts of a Trainer, without access to the Hub.

    Args:
        trainer: the Trainer, during or after a training.
        size: number of parameters, and of trained ones; a sharded model does not show them.
        given: parameters of `Trainer.create_model_card`, which take precedence.
    """
    args = trainer.args
    state = trainer.state
    model = inspection.unwrap_model(trainer.model)
    base = inspection.base_of_adapter(model)
    library = "lightrainer"
    if base is not model:
        library = "peft"
    elif inspection.is_pretrained(model):
        library = "transformers"

    # What the user gives goes before what is found.
    named = named_sources(
        as_list(given.get("dataset")),
        as_list(given.get("dataset_tags")),
        as_list(given.get("dataset_args")),
    )
    evaluated_on = trainer.train_dataset if trainer.eval_dataset is None else trainer.eval_dataset
    tasks = as_list(given.get("tasks")) or as_list(task_of(base))
    return CardFacts(
        model_name=given.get("model_name")
        or os.path.basename(os.path.abspath(str(args.output_dir))),
        model_class=_class_name(base),
        library=library,
        parameters=size[0],
        trainable=size[1],
        base_model=given.get("finetuned_from") or _origin(base),
        language=tuple(as_list(given.get("language"))),
        license=given.get("license"),
        tags=tuple(dict.fromkeys([*as_list(given.get("tags")), *OWN_TAGS])),
        tasks=tuple(tasks),
        sources=named or sources_of(evaluated_on),
        training_sources=named or sources_of(trainer.train_dataset),
        train_samples=samples_in(trainer.train_dataset),
        eval_samples=samples_in(trainer.eval_dataset),
        settings=settings_of(args),
        log_history=tuple(dict(entry) for entry in state.log_history if isinstance(entry, dict)),
        chosen_step=_chosen_step(args, state),
        steps=state.global_step,
    )


def as_list(value: Any) -> list[Any]:
    """Return one value, several, or None as a list."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    return list(value)


def size_of(model: Any) -> tuple[int, int]:
    """Return the number of parameters of a model, and of trainable ones."""
    parameters = list(model.parameters())
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    return sum(map(torch.numel, parameters)), sum(map(torch.numel, trainable))


def _class_name(model: Any) -> str:
    """Return the name of the user's class, from which FSDP derives another."""
    return next(cls.__name__ for cls in type(model).__mro__ if not cls.__name__.startswith("FSDP"))


def _origin(model: Any) -> str | None:
    """Return the repository that a model of `transformers` was loaded from."""
    name = getattr(getattr(model, "config", None), "_name_or_path", None)
    if not isinstance(name, str) or not name or os.path.isdir(name):
        return None
    return name if is_repository_name(name) else None


def _chosen_step(args: Any, state: Any) -> int | None:
    """Return the step of the best model if it was loaded at the end."""
    if not args.load_best_model_at_end or state.best_model_checkpoint is None:
        return None
    has_ended = any(
        isinstance(entry, dict) and "train_runtime" in entry for entry in state.log_history
    )
    return state.best_global_step if has_ended else None


def sources_of(dataset: Any) -> tuple[DataSource, ...]:
    """Return the known sources of a dataset, or of a dict of datasets."""
    if not isinstance(dataset, dict):
        source = source_of(dataset)
        return () if source is None else (source,)

    sources = []
    for name, dataset_of_set in dataset.items():
        source = source_of(dataset_of_set)
        if source is not None:
            sources.append(replace(source, prefix=f"{name}_"))
    return tuple(sources)


def named_sources(names: list[str], tags: list[str], args: list[Any]) -> tuple[DataSource, ...]:
    """Build sources from the parallel lists of the user, some of which may be shorter or empty.

    As in the reference, tags are identifiers on the Hub, and also names where none are given.
    """
    longest = max(len(names), len(tags))
    padded = zip_longest(names or tags, tags, args[:longest])
    return tuple(DataSource(name=name or tag, tag=tag, args=more) for name, tag, more in padded)


def source_of(dataset: Any) -> DataSource | None:
    """Return the source of a dataset; None if it is not of `datasets`, or was made from local
    files.

    Args:
        dataset: of any kind.
    """
    if not is_instance(dataset, "datasets", "Dataset", "IterableDataset"):
        return None
    name = _name(dataset.info)
    if name is None:
        return None
    return DataSource(
        name=name,
        tag=name,
        config=dataset.info.config_name,
        split=None if dataset.split is None else str(dataset.split),
    )


def samples_in(dataset: Any) -> int | None:
    """Return the number of samples, or None if unknown."""
    if isinstance(dataset, dict):
        total = 0
        for dataset_of_set in dataset.values():
            count = samples_in(dataset_of_set)
            if count is None:
                return None
            total += count
        return total
    return len(dataset) if has_length(dataset) else None


def _name(info: Any) -> str | None:
    """Return the repository of the files, or else the name of the builder."""
    for address in getattr(info, "download_checksums", None) or {}:
        if found := _ON_THE_HUB.match(str(address)):
            return found["name"]
    for name in (getattr(info, "dataset_name", None), getattr(info, "builder_name", None)):
        if name and name not in _BUILDERS:
            return name
    return None


_IF_NOT_DEFAULT = (
    "lr_scheduler_kwargs",
    "optim_args",
    "optim_target_modules",
    "parameter_rules",
    "weight_decay",
    "max_grad_norm",
    "label_smoothing_factor",
    "neftune_noise_alpha",
    "full_determinism",
    "data_seed",
    "train_sampling_strategy",
    "dataloader_drop_last",
    "gradient_checkpointing",
    "use_liger_kernel",
    "torch_compile",
    "auto_find_batch_size",
)
_PRECISIONS = {"no": "float32", "bf16": "mixed, bfloat16", "fp16": "mixed, float16"}


def settings_of(args: Any) -> dict[str, str]:
    """Return names and values of arguments: the main ones, and others that differ from their
    defaults.

    Args:
        args: `TrainingArguments`.
    """
    settings: dict[str, Any] = {
        "learning_rate": args.learning_rate,
        "per_device_train_batch_size": args.per_device_train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "processes": args.world_size,
        "total batch size": (
            args.train_batch_size * args.gradient_accumulation_steps * data_ranks(args)
        ),
        "per_device_eval_batch_size": args.per_device_eval_batch_size,
        "seed": args.seed,
        "optim": _optimizer(args),
        "lr_scheduler_type": args.lr_scheduler_type,
        "warmup_steps": args.warmup_steps,
    }
    if args.max_steps > 0:
        settings["max_steps"] = args.max_steps
    else:
        settings["num_train_epochs"] = args.num_train_epochs
    settings["precision"] = _PRECISIONS[args.mixed_precision]
    if args.deepspeed:
        settings["sharding"] = "DeepSpeed"
    elif args.fsdp:
        settings["sharding"] = "FSDP"

    defaults = {item.name: item.default for item in fields(args) if item.default is not MISSING}
    for name in _IF_NOT_DEFAULT:
        value = getattr(args, name)
        if value != defaults.get(name):
            settings[name] = value
    return {
        name: str(getattr(value, "value", value))
        for name, value in settings.items()
        if value not in (None, "")
    }


def _optimizer(args: Any) -> str:
    name = str(getattr(args.optim, "value", args.optim))
    if "adam" not in name:
        return name
    return (
        f"{name}, betas {args.adam_beta1:g} and {args.adam_beta2:g}, epsilon {args.adam_epsilon:g}"
    )


_NAMED_AS_WRITTEN = """
    audio-classification automatic-speech-recognition image-classification image-segmentation
    multiple-choice object-detection question-answering table-question-answering text-classification
    token-classification
"""
TASK_NAMES = {task: task.replace("-", " ").title() for task in _NAMED_AS_WRITTEN.split()} | {
    "fill-mask": "Masked Language Modeling",
    "image-text-to-text": "Image-Text-to-Text",
    "text-generation": "Causal Language Modeling",
    "text2text-generation": "Sequence-to-Sequence Language Modeling",
    "zero-shot-image-classification": "Zero-Shot Image Classification",
}
"""Names of tasks on a card."""

_ENDINGS_OF_TASKS = {
    "text-generation": "ForCausalLM LMHeadModel WithLMHead",
    "fill-mask": "ForMaskedLM WithLMHeadModel",
    "text-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
    "question-answering": "ForQuestionAnswering ForQuestionAnsweringSimple",
    "multiple-choice": "ForMultipleChoice",
    "text2text-generation": "ForConditionalGeneration MTModel ForTextToText EncoderDecoderModel",
    "image-classification": "ForImageClassification ForImageClassificationWithTeacher",
    "image-segmentation": (
        "ForImageSegmentation ForSegmentation ForSemanticSegmentation ForUniversalSegmentation"
    ),
    "object-detection": "ForObjectDetection",
    "audio-classification": "ForAudioClassification",
    "automatic-speech-recognition": (
        "ForCTC ForSpeechSeq2Seq ForSpeechToText SpeechEncoderDecoderModel"
    ),
    "image-text-to-text": "VisionEncoderDecoderModel",
}
_ENDINGS = {
    ending: task for task, endings in _ENDINGS_OF_TASKS.items() for ending in endings.split()
}
_OF_IMAGES = {
    "text-generation": "image-text-to-text",
    "text2text-generation": "image-text-to-text",
}
_OF_SOUND = {
    "text-classification": "audio-classification",
    "text2text-generation": "automatic-speech-recognition",
}
_SOUND_INPUTS = ("input_values", "input_features")


def task_of(model: Any) -> str | None:
    """Return the task of a model from the ending of its class name, or None.

    Ambiguous endings are resolved by the modality of the inputs: text, sound or images.

    Args:
        model: the user's model, without wrappers.
    """
    name = type(model).__name__
    if name == "TapasForQuestionAnswering":
        return "table-question-answering"
    endings = [ending for ending in _ENDINGS if name.endswith(ending)]
    if not endings:
        return None
    task = _ENDINGS[max(endings, key=len)]  # one may be the end of another

    config = getattr(model, "config", None)
    main_input = getattr(model, "main_input_name", "")
    if main_input == "pixel_values" or hasattr(config, "vision_config"):
        return _OF_IMAGES.get(task, task)
    if main_input in _SOUND_INPUTS or hasattr(config, "audio_config"):
        return _OF_SOUND.get(task, task)
    return task
