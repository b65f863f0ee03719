"""Check how a `TFTrainer` is made and called, before a training begins."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from torch import nn

from ...lightning_modules.keras.module import KerasModule
from ...lightning_modules.keras.pairs import PairCollator, first_sample
from ...lightning_modules.keras.tensorflow_data import (
    is_tensorflow_dataset,
    require_cardinality,
    sample_like,
)
from ..trainer.checks import dataset_problem
from .arguments import TFTrainingArguments

logger = logging.getLogger(__name__)


def check_parameters(model: Any, args: Any) -> None:
    """Look at what a `TFTrainer` is made of.

    Raises:
        TypeError: there is no model, or the arguments are others.
    """
    if not isinstance(args, TFTrainingArguments):
        found = f"{type(args).__name__} ({args!r:.60})"
        raise TypeError(
            f"args must be TFTrainingArguments, but is {found}. The order is TFTrainer(model, "
            "args, ...)."
        )
    if not callable(getattr(model, "call", None)):
        raise TypeError(
            f"model must be a Keras model, but is {type(model).__name__} ({model!r:.60})."
        )


def check_dataset(data: Any, name: str, args: TFTrainingArguments) -> None:
    """Look at data, and at its first sample.

    Args:
        data: None is fine.
        name: what it was given as.
        args: of the trainer.

    Raises:
        TypeError: it is no data, or its samples are no pairs of numbers.
        ValueError: it is empty, its length is unknown, or it is unknown which columns are labels.
        NotImplementedError: arguments that do not go with it.
    """
    if data is None:
        return
    if is_tensorflow_dataset(data):
        if require_cardinality(data, name) == 0:
            raise ValueError(f"{name} is empty: its cardinality is 0.")
        if args.dataloader_num_workers > 0:
            given = f"dataloader_num_workers={args.dataloader_num_workers}"
            raise NotImplementedError(
                f"{given}: a tf.data.Dataset reads ahead in threads of its own; leave it out."
            )
        sample_like(data)
        return
    problem = dataset_problem(data, name, inner=True)
    if problem is not None:
        raise TypeError(problem)
    sample = first_sample(data)
    if sample is None:
        raise ValueError(f"{name} is empty: it has no sample.")
    try:
        PairCollator(args.label_names)([sample])
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error


def check_steps(trainer: Any, original: type) -> None:
    """Look at the overrides of a `TFTrainer` that is about to train.

    Args:
        trainer: of a subclass.
        original: the class whose methods were overridden.

    Raises:
        NotImplementedError: they do not go with the arguments.
    """
    _warn_of_clipping(trainer.args)
    _warn_of_precision(trainer.model, trainer.args)
    if trainer.args.mixed_precision == "fp16" and is_overridden(trainer, original, "training_step"):
        said = (
            "fp16=True with a training_step of your own would mix scaled gradients with those that "
            "it returns"
        )
        raise NotImplementedError(f"{said}. Set bf16=True, or override run_model or compute_loss.")


def is_overridden(trainer: Any, original: type, name: str) -> bool:
    """Tell whether a method is another one than that of a class, in a subclass or in the object
    itself.
    """
    return getattr(getattr(trainer, name), "__func__", None) is not original.__dict__[name]


def _warn_of_clipping(args: TFTrainingArguments) -> None:
    default = TFTrainingArguments.__dataclass_fields__["max_grad_norm"].default
    if args.max_grad_norm != default and args.gradient_accumulation_steps == 1:
        said = (
            "max_grad_norm=%s has no effect with gradient_accumulation_steps=1: as in transformers "
            "4, %s."
        )
        logger.warning(
            said, args.max_grad_norm, "TFTrainer clips gradients only where it accumulates them"
        )


def _warn_of_precision(model: Any, args: TFTrainingArguments) -> None:
    """Torch casts what Keras computes in it; TensorFlow does as each layer was told when it was
    made.
    """
    wanted = {"fp16": "float16", "bf16": "bfloat16"}.get(args.mixed_precision)
    found = {
        getattr(layer, "compute_dtype", None) for layer in (model, *getattr(model, "layers", ()))
    }
    if wanted is not None and not isinstance(model, nn.Module) and wanted not in found:
        said = (
            "%s=True has no effect on layers that were made before: make them in `with "
            "args.strategy.scope():`."
        )
        logger.warning(said, args.mixed_precision)


def build(module: KerasModule, datasets: Iterable[Any], collator: PairCollator) -> None:
    """Make the weights of a model, from the first of several datasets that there is.

    Raises:
        ValueError: there is no data, or the model has no weights afterwards.
    """
    data = next((one for one in datasets if one is not None), None)
    if data is None:
        said = (
            f"The model ({module.model.name}) has no weights yet, and there is no data to build it "
            "from"
        )
        raise ValueError(
            f"{said}. Call it once on a batch, or give its first layer the shape of its input."
        )
    if is_tensorflow_dataset(data):
        features, labels = sample_like(data)
    else:
        batch = collator([first_sample(data)])
        features, labels = batch["features"], batch["labels"]
    module.build(features, labels)
