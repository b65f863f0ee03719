"""Check the parameters, data and overrides of a `TFTrainer`, and build its model."""

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
    """Check the types of the model and the arguments that are passed to a `TFTrainer`.

    Raises:
        TypeError: `model` is not a Keras model, or `args` has another type.
    """
    if not isinstance(args, TFTrainingArguments):
        actual = f"{type(args).__name__} ({args!r:.60})"
        raise TypeError(
            f"args must be TFTrainingArguments, but is {actual}. The order is TFTrainer(model, "
            "args, ...)."
        )
    if not callable(getattr(model, "call", None)):
        raise TypeError(
            f"model must be a Keras model, but is {type(model).__name__} ({model!r:.60})."
        )


def check_dataset(data: object, name: str, args: TFTrainingArguments) -> None:
    """Check a dataset, and its first sample.

    Args:
        data: the dataset; None is not checked.
        name: the name of the argument, for error messages.
        args: the arguments of the trainer.

    Raises:
        TypeError: the data is not a dataset, or its samples are not pairs of numbers.
        ValueError: the data is empty, or its length or its label columns are unknown.
        NotImplementedError: an argument cannot be combined with this kind of data.
    """
    if data is None:
        return
    if is_tensorflow_dataset(data):
        if require_cardinality(data, name) == 0:
            raise ValueError(f"{name} is empty: its cardinality is 0.")
        if args.dataloader_num_workers > 0:
            raise NotImplementedError(
                f"dataloader_num_workers={args.dataloader_num_workers} is not supported for a "
                "tf.data.Dataset, which reads ahead in its own threads. Remove it."
            )

        # This raises unless the elements are pairs of dense tensors.
        sample_like(data)
        return

    problem = dataset_problem(data, name, inner=True)
    if problem is not None:
        raise TypeError(problem)
    sample = first_sample(data)
    if sample is None:
        raise ValueError(f"{name} is empty: it has no sample.")

    # Try the collator on the sample, because it raises if it does not accept it.
    try:
        PairCollator(args.label_names)([sample])
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def check_steps(trainer: Any, original: type) -> None:
    """Check the overrides of a `TFTrainer` that is about to train.

    Args:
        trainer: an instance of a subclass.
        original: the class whose methods the subclass overrides.

    Raises:
        NotImplementedError: an override cannot be combined with the arguments.
    """
    _warn_of_clipping(trainer.args)
    _warn_of_precision(trainer.model, trainer.args)
    if trainer.args.mixed_precision == "fp16" and is_overridden(trainer, original, "training_step"):
        raise NotImplementedError(
            "fp16=True is not supported with an override of training_step, whose gradients would "
            "be mixed with scaled ones. Set bf16=True, or override run_model or compute_loss."
        )


def is_overridden(trainer: Any, original: type, name: str) -> bool:
    """Return whether a subclass, or the object itself, overrides a method of a class."""
    method = getattr(getattr(trainer, name), "__func__", None)
    return method is not original.__dict__[name]


def _warn_of_clipping(args: TFTrainingArguments) -> None:
    """Warn if `max_grad_norm` was set, but has no effect."""
    default = TFTrainingArguments.__dataclass_fields__["max_grad_norm"].default
    if args.max_grad_norm != default and args.gradient_accumulation_steps == 1:
        logger.warning(
            "max_grad_norm=%s has no effect with gradient_accumulation_steps=1: as in transformers "
            "4, TFTrainer clips gradients only where it accumulates them.",
            args.max_grad_norm,
        )


def _warn_of_precision(model: Any, args: TFTrainingArguments) -> None:
    """Warn if TensorFlow layers do not compute in the mixed precision of the arguments.

    torch casts in each operation, but a TensorFlow layer gets its precision when it is created.
    """
    dtype = {"fp16": "float16", "bf16": "bfloat16"}.get(args.mixed_precision)
    if dtype is None or isinstance(model, nn.Module):
        return
    layers = (model, *getattr(model, "layers", ()))
    if any(getattr(layer, "compute_dtype", None) == dtype for layer in layers):
        return
    logger.warning(
        "%s=True has no effect on layers that exist already. Create them in `with "
        "args.strategy.scope():`.",
        args.mixed_precision,
    )


def build(module: KerasModule, datasets: Iterable[Any], collator: PairCollator) -> None:
    """Create the weights of a model, using the first dataset that is not None.

    Raises:
        ValueError: no data was passed.
    """
    data = next((dataset for dataset in datasets if dataset is not None), None)
    if data is None:
        raise ValueError(
            f"The model ({module.model.name}) has no weights yet, and no data to build it "
            "from. Call it once on a batch, or set the input shape of its first layer."
        )
    if is_tensorflow_dataset(data):
        features, labels = sample_like(data)
    else:
        batch = collator([first_sample(data)])
        features = batch["features"]
        labels = batch["labels"]
    module.build(features, labels)
