"""Advice added to out-of-memory errors: the batch, and remedies to try."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from ...lightning_modules.training.out_of_memory import explained, is_out_of_memory, shapes_of


def advice_for_training(args: Any, inputs: Any = None) -> str:
    """Return the note for a training step.

    Args:
        args: the training arguments.
        inputs: the micro-batch if the error came from the model; None for the optimizer.
    """
    tries = [
        "a smaller per_device_train_batch_size with a larger gradient_accumulation_steps"
        + ("" if args.auto_find_batch_size else " (auto_find_batch_size=True looks for a batch that fits)"),
    ]
    if inputs is None:
        said = f"This was in the optimizer step, with optim={getattr(args.optim, 'value', args.optim)!r}"
        tries.append("an optimizer that keeps less, such as optim='adafactor' or 'sgd'")
    else:
        said = f"The batch was: {_described(inputs)}"
        tries.append("shorter inputs")
        if not args.gradient_checkpointing:
            tries.append("gradient_checkpointing=True")
        if not (args.bf16 or args.fp16):
            tries.append("bf16=True")
    processes = "1 process" if args.world_size == 1 else f"{args.world_size} processes"
    return (
        f"{said}; per_device_train_batch_size={args.per_device_train_batch_size}, "
        f"gradient_accumulation_steps={args.gradient_accumulation_steps}, {processes}.\n"
        f"What to try: {'; '.join(tries)}."
    )


def advice_for_evaluation(args: Any, inputs: Any = None) -> str:
    """Return the note for an evaluation; `auto_find_batch_size` does not change its batches."""
    batch = "" if inputs is None else f", and the batch was: {_described(inputs)}"
    tries = ["a smaller per_device_eval_batch_size"]
    if not args.prediction_loss_only:
        if args.eval_accumulation_steps is None and args.device.type != "cpu":
            tries.append("eval_accumulation_steps=1, which moves predictions to the main memory")
        tries.append("preprocess_logits_for_metrics, to keep only what the metrics need")
        tries.append("prediction_loss_only=True")
    return (
        f"This was in an evaluation, with per_device_eval_batch_size={args.per_device_eval_batch_size}{batch}.\n"
        f"What to try: {'; '.join(tries)}."
    )


@contextlib.contextmanager
def evaluating(args: Any) -> Iterator[None]:
    """Mark memory errors of the block as those of an evaluation, and add the advice if missing."""
    try:
        with explained(lambda: advice_for_evaluation(args)):
            yield
    except Exception as error:
        if is_out_of_memory(error):
            vars(error)["in_evaluation"] = True
        raise


def _described(inputs: Any) -> str:
    """Return the shapes, for language models with batch size and sequence length."""
    tokens = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    shape = tuple(getattr(tokens, "shape", ()))
    words = f" (batch size {shape[0]}, sequence length {shape[1]})" if len(shape) == 2 else ""
    return shapes_of(inputs) + words
