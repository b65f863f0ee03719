"""What an out-of-memory error says in addition: with which batch it came, and what to try."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from ...lightning_modules.training.out_of_memory import explained, is_out_of_memory, shapes_of


def advice_for_training(args: Any, inputs: Any = None) -> str:
    """The note for a step of the training.

    Args:
        args: the training arguments.
        inputs: the micro-batch, if the error came from the model; otherwise it came from the optimizer.
    """
    said = (
        f"This was in the optimizer step, with optim={_plain(args.optim)!r}"
        if inputs is None
        else f"The batch was: {_described(inputs)}"
    )
    tries = [
        "a smaller per_device_train_batch_size with a larger gradient_accumulation_steps"
        + ("" if args.auto_find_batch_size else " (auto_find_batch_size=True looks for a batch that fits)"),
        *(remedy for remedy, is_there in _remedies(args, inputs) if not is_there),
    ]
    return (
        f"{said}; per_device_train_batch_size={args.per_device_train_batch_size}, "
        f"gradient_accumulation_steps={args.gradient_accumulation_steps}, {_processes(args)}.\n"
        f"What to try: {'; '.join(tries)}."
    )


def advice_for_evaluation(args: Any, inputs: Any = None) -> str:
    """The note for an evaluation; `auto_find_batch_size` does not change its batches."""
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
    """Mark memory errors that pass through as those of an evaluation, and explain them if nobody has."""
    try:
        with explained(lambda: advice_for_evaluation(args)):
            yield
    except Exception as error:
        if is_out_of_memory(error):
            vars(error)["in_evaluation"] = True
        raise


def _remedies(args: Any, inputs: Any) -> list[tuple[str, bool]]:
    """What saves memory, and whether it is in use already."""
    return [
        ("shorter inputs", inputs is None),
        ("gradient_checkpointing=True", args.gradient_checkpointing or inputs is None),
        ("bf16=True", args.bf16 or args.fp16 or inputs is None),
        ("an optimizer that keeps less, such as optim='adafactor' or 'sgd'", inputs is not None),
    ]


def _described(inputs: Any) -> str:
    """Shapes, and in words what they mean for a language model."""
    tokens = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    shape = tuple(getattr(tokens, "shape", ()))
    words = f" (batch size {shape[0]}, sequence length {shape[1]})" if len(shape) == 2 else ""
    return shapes_of(inputs) + words


def _processes(args: Any) -> str:
    return "1 process" if args.world_size == 1 else f"{args.world_size} processes"


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)
