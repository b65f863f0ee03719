"""The loss of each sample, as a Keras model says it: by itself, or by what it was compiled with."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping
from typing import Any


def losses_and_logits(model: Any, features: Any, labels: Any, training: bool) -> tuple[Any, Any]:
    """Call a model; in tensors of its library.

    Args:
        model: one whose `call` takes labels and returns (loss, logits, ...), as those of
            transformers 4 do, or any that was compiled with one loss.
        features: of a batch.
        labels: of that batch; a dict holds keyword arguments of `call`, all others are its
            `labels`.
        training: whether dropout is on.

    Returns:
        the loss of each sample, regularization losses of the layers added, and the logits.

    Raises:
        ValueError: the model has no loss.
        NotImplementedError: it has several.
    """
    keywords = labels if isinstance(labels, Mapping) else {"labels": labels}
    if keywords.keys() <= _parameters(getattr(model.call, "__func__", model.call)):
        loss, logits = tuple(model(features, training=training, **keywords)[:2])
        return loss, logits[0] if isinstance(logits, tuple) else logits
    loss_of = compiled_loss(model)
    logits = model(features, training=training)
    losses = loss_of(labels, logits)
    for regularization in model.losses:
        losses = losses + regularization
    return losses, logits


def compiled_loss(model: Any) -> Any:
    """Return the loss that a model was compiled with, as a function of (labels, logits) that does
    not reduce.

    Raises:
        ValueError: there is none.
        NotImplementedError: there are several.
    """
    given = getattr(model, "loss", None)
    if given is None:
        raise ValueError(
            f"The model ({model.name}) has no loss: model.compile(loss=...), let its call take "
            "labels and return (loss, logits), or override run_model."
        )
    if isinstance(given, (Mapping, list, tuple)):
        raise NotImplementedError(
            f"The model ({model.name}) has several losses: override run_model to add them up."
        )
    found = _library(model).losses.get(given)
    if not hasattr(found, "reduction"):
        return lambda labels, logits: found(*_of_one_rank(labels, logits))
    each = object.__new__(type(found))  # copy.copy would write a file, and read it again
    vars(each).update(vars(found), reduction="none")
    return each


@functools.lru_cache(maxsize=16)
def _parameters(call: Any) -> frozenset[str]:
    return frozenset(inspect.signature(call).parameters)


def _library(model: Any) -> Any:
    """Return the Keras that a model is of: there may be two of them, `keras` and `tf_keras`."""
    roots = [kind.__module__.partition(".")[0] for kind in type(model).__mro__]
    return sys.modules[next(root for root in roots if root in ("keras", "tf_keras"))]


def _of_one_rank(labels: Any, logits: Any) -> tuple[Any, Any]:
    """Return both without a last dimension of one that only one of them has, as Keras compares
    them.
    """
    if len(labels.shape) == len(logits.shape) + 1 and labels.shape[-1] == 1:
        return labels[..., 0], logits
    if len(logits.shape) == len(labels.shape) + 1 and logits.shape[-1] == 1:
        return labels, logits[..., 0]
    return labels, logits
