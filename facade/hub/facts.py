"""What is known about a training when its model card is written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ...lightning_modules.models import inspection
from .data_sources import DataSource, named_sources, samples_in, sources_of
from .repository import is_repository_name
from .settings import settings_of
from .tasks import task_of

OWN_TAGS = ("generated_from_trainer", "lightrainer")


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """A training at one moment; later logs do not show in it, so a thread can write about it."""

    model_name: str
    model_class: str
    library: str
    """What reads the model: `transformers`, `peft`, or `lightrainer`."""
    parameters: int
    trainable: int
    """Parameters that were trained."""
    base_model: str | None
    """On the Hub; None for a model that was trained from scratch, or from somebody's own files."""
    language: tuple[str, ...]
    license: str | None
    tags: tuple[str, ...]
    tasks: tuple[str, ...]
    """Identifiers of tasks on the Hub."""
    sources: tuple[DataSource, ...]
    """What the metrics were measured on."""
    training_sources: tuple[DataSource, ...]
    train_samples: int | None
    eval_samples: int | None
    settings: dict[str, str]
    """Arguments that shape the result, and their values."""
    log_history: tuple[dict[str, Any], ...]
    chosen_step: int | None
    """The step that the model is of; None means the last one."""
    steps: int
    """Optimizer steps that were taken."""


def facts_of(trainer: Any, size: tuple[int, int], **given: Any) -> CardFacts:
    """Collect what the Trainer knows; quick, and without a word to the Hub.

    Args:
        trainer: the Trainer, in the middle of a training or after it.
        size: parameters, and those of them that are trained; a model that is spread over processes hides them.
        given: what the parameters of `Trainer.create_model_card` say; it goes before what can be found out.
    """
    model, args, state = inspection.unwrap_model(trainer.model), trainer.args, trainer.state
    evaluated_on = trainer.train_dataset if trainer.eval_dataset is None else trainer.eval_dataset
    told = named_sources(
        as_list(given.get("dataset")), as_list(given.get("dataset_tags")), as_list(given.get("dataset_args"))
    )
    base = inspection.base_of_adapter(model)
    task = task_of(base)
    return CardFacts(
        model_name=given.get("model_name") or os.path.basename(os.path.abspath(str(args.output_dir))),
        model_class=_class_name(base),
        library="peft" if base is not model else "transformers" if inspection.is_pretrained(model) else "lightrainer",
        parameters=size[0],
        trainable=size[1],
        base_model=given.get("finetuned_from") or _origin(base),
        language=tuple(as_list(given.get("language"))),
        license=given.get("license"),
        tags=tuple(dict.fromkeys([*as_list(given.get("tags")), *OWN_TAGS])),
        tasks=tuple(as_list(given.get("tasks"))) or (() if task is None else (task,)),
        sources=told or sources_of(evaluated_on),
        training_sources=told or sources_of(trainer.train_dataset),
        train_samples=samples_in(trainer.train_dataset),
        eval_samples=samples_in(trainer.eval_dataset),
        settings=settings_of(args),
        log_history=tuple(dict(entry) for entry in state.log_history if isinstance(entry, dict)),
        chosen_step=_chosen_step(args, state),
        steps=state.global_step,
    )


def as_list(value: Any) -> list[Any]:
    """One thing, several, or None, as a list."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)


def size_of(model: Any) -> tuple[int, int]:
    """How many parameters a model has, and how many of them are trained."""
    counts = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(count for count, _ in counts), sum(count for count, trained in counts if trained)


def _class_name(model: Any) -> str:
    """The user's class, which torch's FSDP derives another one from."""
    return next(cls.__name__ for cls in type(model).__mro__ if not cls.__name__.startswith("FSDP"))


def _origin(model: Any) -> str | None:
    """The repository that a model of `transformers` was loaded from."""
    name = getattr(getattr(model, "config", None), "_name_or_path", None)
    if not isinstance(name, str) or not name or os.path.isdir(name):
        return None
    return name if is_repository_name(name) else None


def _chosen_step(args: Any, state: Any) -> int | None:
    """The step of the best model, if that is the one that was loaded at the end."""
    ended = any(isinstance(entry, dict) and "train_runtime" in entry for entry in state.log_history)
    loaded = args.load_best_model_at_end and state.best_model_checkpoint is not None
    return state.best_global_step if ended and loaded else None
