"""Compute the loss of each sample, which a Keras model returns or was compiled with."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType


def losses_and_logits(model: Any, features: Any, labels: object, training: bool) -> tuple[Any, Any]:
    """Call a model, and compute the loss of each sample.

    All tensors belong to the library that the model computes in.

    Args:
        model: a model whose `call` accepts labels and returns (loss, logits, ...), as the models of
            transformers 4 do, or any model that was compiled with one loss.
        features: the features of a batch.
        labels: the labels of that batch. A dict is passed as keyword arguments of `call`, anything
            else as its argument `labels`.
        training: whether dropout is on.

    Returns:
        The loss of each sample, including the regularization losses of the layers, and the logits.

    Raises:
        ValueError: the model has no loss.
        NotImplementedError: the model has several losses.
    """
    kwargs = {"labels": labels}
    if isinstance(labels, Mapping):
        kwargs = dict(labels)
    call = getattr(model.call, "__func__", model.call)
    if kwargs.keys() <= _parameter_names(call):
        loss, logits = tuple(model(features, training=training, **kwargs)[:2])
        if isinstance(logits, tuple):
            logits = logits[0]
        return loss, logits

    compute_losses = compiled_loss(model)
    logits = model(features, training=training)
    losses = compute_losses(labels, logits)
    for regularization in model.losses:
        losses = losses + regularization
    return losses, logits


def compiled_loss(model: Any) -> Any:
    """Return the loss that a model was compiled with.

    Returns:
        A function of (labels, logits) that returns the loss of each sample instead of their mean.

    Raises:
        ValueError: the model has no loss.
        NotImplementedError: the model has several losses.
    """
    loss = getattr(model, "loss", None)
    if loss is None:
        raise ValueError(
            f"The model ({model.name}) has no loss: call model.compile(loss=...), let its call "
            "take labels and return (loss, logits), or override run_model."
        )
    if isinstance(loss, (Mapping, list, tuple)):
        raise NotImplementedError(
            f"The model ({model.name}) has several losses: override run_model to add them up."
        )

    loss_fn = _keras_of(model).losses.get(loss)
    if not hasattr(loss_fn, "reduction"):

        def compute_losses(labels: object, logits: object) -> Any:
            labels, logits = _with_equal_ranks(labels, logits)
            return loss_fn(labels, logits)

        return compute_losses

    # Copy the loss, without a reduction. `copy.copy` would write the Keras object to a file and
    # read it again.
    unreduced = object.__new__(type(loss_fn))
    vars(unreduced).update(vars(loss_fn), reduction="none")
    return unreduced


@functools.lru_cache(maxsize=16)
def _parameter_names(call: Any) -> frozenset[str]:
    """Return the names of a function's parameters."""
    return frozenset(inspect.signature(call).parameters)


def _keras_of(model: object) -> ModuleType:
    """Return the package that a model's class comes from: `keras`, or `tf_keras`."""
    packages = [cls.__module__.partition(".")[0] for cls in type(model).__mro__]
    name = next(package for package in packages if package in ("keras", "tf_keras"))
    return sys.modules[name]


def _with_equal_ranks(labels: Any, logits: Any) -> tuple[object, object]:
    """Drop a last dimension of size 1 that only labels or only logits have, as Keras does."""
    if len(labels.shape) == len(logits.shape) + 1 and labels.shape[-1] == 1:
        return labels[..., 0], logits
    if len(logits.shape) == len(labels.shape) + 1 and logits.shape[-1] == 1:
        return labels, logits[..., 0]
    return labels, logits
