"""Collect the facts about a training for its model card: model, task, data, arguments."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack, cast

from ...lightning_modules.common.libraries import is_instance
from ...lightning_modules.models.pretrained import is_pretrained
from ...lightning_modules.models.wrappers import base_of_adapter, unwrap_model
from .repository import is_repository_name
from .tasks import task_of

if TYPE_CHECKING:
    from torch import nn

    from ...callbacks.state import TrainerState
    from .. import Trainer
    from ..arguments import TrainingArguments

OWN_TAGS = ("generated_from_trainer", "lightrainer")
"""Tags that every card gets."""

_GENERIC_BUILDERS = {
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
"""Builders of `datasets` whose names do not describe the data."""

_SETTINGS = (
    "learning_rate",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "optim",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "mixed_precision",
    "world_size",
    "seed",
)
"""Arguments that a card lists."""


class CardOptions(TypedDict, total=False):
    """Parameters of `Trainer.create_model_card`.

    Parameters that are None or missing are derived from the training.
    """

    language: str | list[str] | None
    license: str | None
    tags: str | list[str] | None
    model_name: str | None
    finetuned_from: str | None
    tasks: str | list[str] | None
    dataset_tags: str | list[str] | None
    dataset: str | list[str] | None
    dataset_args: str | list[str] | None


class LibraryDatasetInfo(Protocol):
    """The attributes of `datasets.DatasetInfo` that every version has."""

    builder_name: str | None
    config_name: str | None


class LibraryDataset(Protocol):
    """The attributes of `datasets.Dataset` and `IterableDataset` that describe it."""

    info: LibraryDatasetInfo
    split: object


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """A dataset as named on a model card."""

    name: str
    """Displayed name."""
    tag: str | None
    """Identifier on the Hub. Without one, the card has neither a link nor metadata for it."""
    config: str | None = None
    split: str | None = None
    args: Any = None
    """The user's `dataset_args`: further arguments with which the dataset was loaded."""


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """Snapshot of a training, from which a thread can write the card while training continues."""

    model_name: str
    model_class: str
    library: str
    """Library that loads the model: `transformers`, `peft`, or `lightrainer`."""
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
    settings: dict[str, str]
    """The main arguments, with values."""
    log_history: tuple[dict[str, Any], ...]
    chosen_step: int | None
    """Step of the saved model; None for the last one."""
    steps: int
    """Optimizer steps taken."""


def facts_of(trainer: Trainer, **options: Unpack[CardOptions]) -> CardFacts:
    """Collect the facts about a Trainer, without access to the Hub.

    Args:
        trainer: the Trainer, during or after a training.
        options: parameters of `Trainer.create_model_card`, which take precedence.
    """
    args = trainer.args
    state = trainer.state

    # Find the user's model, and the library that loads it.
    model = unwrap_model(trainer.model)
    base_model = base_of_adapter(model)
    library = "lightrainer"
    if base_model is not model:
        library = "peft"
    elif is_pretrained(model):
        library = "transformers"

    # Use the datasets that the user names, or else the sources of the Trainer's datasets.
    evaluated_on = trainer.eval_dataset
    if evaluated_on is None:
        evaluated_on = trainer.train_dataset
    named = named_sources(
        as_list(options.get("dataset")),
        as_list(options.get("dataset_tags")),
        as_list(options.get("dataset_args")),
    )
    sources = named or sources_of(evaluated_on)
    training_sources = named or sources_of(trainer.train_dataset)

    # Derive name, tags and task.
    output_name = os.path.basename(os.path.abspath(str(args.output_dir)))
    tags = dict.fromkeys([*as_list(options.get("tags")), *OWN_TAGS])
    tasks = as_list(options.get("tasks")) or as_list(task_of(base_model))

    # Copy the entries, because a thread may write the card while the training continues.
    log_history: list[dict[str, Any]] = []
    for entry in state.log_history:
        if isinstance(entry, dict):
            log_history.append(dict(entry))

    return CardFacts(
        model_name=options.get("model_name") or output_name,
        model_class=_class_name(base_model),
        library=library,
        base_model=options.get("finetuned_from") or _repository_of(base_model),
        language=tuple(as_list(options.get("language"))),
        license=options.get("license"),
        tags=tuple(tags),
        tasks=tuple(tasks),
        sources=sources,
        training_sources=training_sources,
        settings={name: _text_of(getattr(args, name)) for name in _SETTINGS},
        log_history=tuple(log_history),
        chosen_step=_chosen_step(args, state),
        steps=state.global_step,
    )


def as_list(value: str | Iterable[str] | None) -> list[str]:
    """Return a list of one value, of several values, or of none for None."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    return list(value)


def _class_name(model: nn.Module) -> str:
    """Return the name of the user's class; FSDP2 replaces it by a subclass `FSDP...`."""
    names = [model_class.__name__ for model_class in type(model).__mro__]
    return next(name for name in names if not name.startswith("FSDP"))


def _repository_of(model: nn.Module) -> str | None:
    """Return the repository that a model of `transformers` was loaded from.

    None if the model was loaded from a local folder, or was not loaded.
    """
    config = getattr(model, "config", None)
    name = getattr(config, "_name_or_path", None)
    if not isinstance(name, str) or not name or os.path.isdir(name):
        return None
    if not is_repository_name(name):
        return None
    return name


def _chosen_step(args: TrainingArguments, state: TrainerState) -> int | None:
    """Return the step of the best model if it was loaded at the end."""
    if not args.load_best_model_at_end or state.best_model_checkpoint is None:
        return None
    for entry in state.log_history:
        # The entry with the duration is logged at the end of a training, after the best model was
        # loaded.
        if isinstance(entry, dict) and "train_runtime" in entry:
            return state.best_global_step
    return None


def named_sources(names: list[str], tags: list[str], args: list[str]) -> tuple[DataSource, ...]:
    """Build sources from the user's lists, which may have different lengths.

    Works as in the reference.

    Args:
        names: the names to show. If the list is empty, the tags are shown.
        tags: the identifiers on the Hub.
        args: the arguments with which each dataset was loaded; surplus ones are ignored.
    """
    longest = max(len(names), len(tags))
    sources: list[DataSource] = []
    for name, tag, loading_args in zip_longest(names or tags, tags, args[:longest]):
        sources.append(DataSource(name=name or tag, tag=tag, args=loading_args))
    return tuple(sources)


def sources_of(dataset: object) -> tuple[DataSource, ...]:
    """Return the source of a dataset of the library `datasets`.

    Empty for other objects, and for datasets made from files.
    """
    if not is_instance(dataset, "datasets", "Dataset", "IterableDataset"):
        return ()

    library_dataset = cast("LibraryDataset", dataset)
    info = library_dataset.info
    name = info.builder_name
    if not name or name in _GENERIC_BUILDERS:
        return ()
    split = library_dataset.split
    if split is not None:
        split = str(split)
    return (DataSource(name=name, tag=name, config=info.config_name, split=split),)


def _text_of(value: object) -> str:
    """Return a value as text; for a member of an enumeration, its value as text."""
    return str(getattr(value, "value", value))
