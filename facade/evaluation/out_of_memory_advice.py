"""Add the batch, and remedies to try, to out-of-memory errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...lightning_modules.training.out_of_memory import explain, is_out_of_memory, shapes_of

if TYPE_CHECKING:
    from ..arguments.training_arguments import TrainingArguments


def advice_for_training(args: TrainingArguments, inputs: object = None) -> str:
    """Return the note for an error in a training step.

    Args:
        args: the training arguments.
        inputs: the micro-batch if the error was raised by the model; None for the optimizer step.
    """
    if inputs is None:
        optimizer = getattr(args.optim, "value", args.optim)
        cause = f"The optimizer step ran out of memory, with optim={optimizer!r}"
        remedies = "an optimizer with a smaller state, such as optim='adafactor' or 'sgd'"
    else:
        cause = f"The batch was: {shapes_of(inputs)}"
        remedies = "shorter inputs; gradient_checkpointing=True; bf16=True"
    return (
        f"{cause}; per_device_train_batch_size={args.per_device_train_batch_size}, "
        f"gradient_accumulation_steps={args.gradient_accumulation_steps}, "
        f"world_size={args.world_size}.\nWhat to try: a smaller per_device_train_batch_size with "
        "a larger gradient_accumulation_steps (auto_find_batch_size=True looks for a batch that "
        f"fits); {remedies}."
    )


def advice_for_evaluation(args: TrainingArguments, inputs: object = None) -> str:
    """Return the note for an evaluation, which `auto_find_batch_size` does not affect."""
    batch = ""
    if inputs is not None:
        batch = f", and the batch was: {shapes_of(inputs)}"
    return (
        "The evaluation ran out of memory, with "
        f"per_device_eval_batch_size={args.per_device_eval_batch_size}{batch}.\nWhat to try: a "
        "smaller per_device_eval_batch_size; eval_accumulation_steps=1, which moves predictions "
        "to the main memory; preprocess_logits_for_metrics, to keep only what metrics need; "
        "prediction_loss_only=True."
    )


@contextlib.contextmanager
def evaluating(args: TrainingArguments) -> Iterator[None]:
    """Mark out-of-memory errors in the block as raised in an evaluation, and add the advice."""
    try:
        yield
    except Exception as error:
        explain(error, lambda: advice_for_evaluation(args))
        if is_out_of_memory(error):
            vars(error)["in_evaluation"] = True
        raise
