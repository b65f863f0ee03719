"""Errors for batches whose columns do not match the arguments of the model."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from ...lightning_modules.models.inspection import base_of_adapter, unwrap_model


def require_inputs(inputs: Any, collator: Any, step: str) -> None:
    """Check that a batch can be passed to the model as keyword arguments.

    Args:
        inputs: the batch.
        collator: of the Trainer, for the message.
        step: method to override for other kinds of batches, for the message.

    Raises:
        TypeError: it is not a mapping, or has keys that are not strings.
    """
    made = f"{getattr(collator, '__name__', type(collator).__name__)} (data_collator)"
    if not isinstance(inputs, Mapping) and not hasattr(inputs, "keys"):
        hint = " It may lack a `return`." if inputs is None else ""
        raise TypeError(
            f"A batch is a {type(inputs).__name__}, but has to be a dict of the arguments of the model: {made} has to "
            f"return one, such as {{'x': ..., 'labels': ...}}.{hint} For batches of another kind override {step}."
        )
    others = [name for name in inputs if not isinstance(name, str)]
    if others:
        raise TypeError(
            f"The batch that {made} returned has the column {others[0]!r}, a {type(others[0]).__name__}, but columns "
            "are passed to the model by name. Give it a name that is text, as the argument of forward is called, or "
            "set remove_unused_columns=True to leave it out."
        )


@contextlib.contextmanager
def explaining_inputs(model: Any, inputs: Any, dataset: Any) -> Iterator[None]:
    """Explain a TypeError of a model that was called without a required argument.

    Args:
        model: called in the block.
        inputs: the batch.
        dataset: source of the batch; a sample of it is read if an argument is missing.
    """
    try:
        yield
    except TypeError as error:
        missing = _missing(model, inputs)
        if not missing or not any(repr(name) in str(error) for name in missing):
            raise
        raise TypeError(
            f"{type(base_of_adapter(model)).__name__}.forward() needs {', '.join(missing)}, but the batch has: "
            f"{', '.join(map(str, inputs)) or 'nothing'}. {_why(missing[0], dataset)}"
        ) from error


def _missing(model: Any, inputs: Any) -> list[str]:
    if not isinstance(inputs, Mapping):
        return []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(unwrap_model(model).forward).parameters.values()
    return [one.name for one in parameters if one.kind in kinds and one.default is one.empty and one.name not in inputs]


def _why(name: str, dataset: Any) -> str:
    """Return the reason, from a sample if one can be read."""
    dataset = next(iter(dataset.values()), None) if isinstance(dataset, dict) else dataset
    sample = None
    with contextlib.suppress(Exception):
        sample = dataset[0]
    if not isinstance(sample, Mapping):
        return "Let the collator give it, or the dataset have a column of that name."
    if name not in sample:
        return f"The data has: {', '.join(map(str, sample))}. Rename a column, or let the collator give {name!r}."
    value = sample[name]
    if isinstance(value, str):
        return (
            f"The column {name!r} is text ({value!r:.40}), which the default data_collator leaves out: make numbers of "
            "it before (a tokenizer), or pass a data_collator that does."
        )
    if value is None:
        return f"The column {name!r} is None in the first sample, which the default data_collator leaves out: fill it."
    return f"The data has the column {name!r}, but the data_collator does not give it."
