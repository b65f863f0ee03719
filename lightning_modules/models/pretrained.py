"""Inspect models of `transformers`: their configs, labels and losses.

The functions also accept models of other classes.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from ..common.libraries import is_instance, loaded
from .wrappers import base_of_adapter, class_of


def is_pretrained(model: nn.Module) -> bool:
    """Return whether a model is a `PreTrainedModel`, without importing `transformers`."""
    return is_instance(model, "transformers.modeling_utils", "PreTrainedModel")


def set_in_config(config: Any, name: str, value: Any) -> bool:
    """Set an attribute of a model's config, and return whether the config accepts it.

    The config of other models may be a dict, a string or a frozen object, which do not accept it.
    """
    try:
        setattr(config, name, value)
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def number_of_classes(model: nn.Module) -> int | None:
    """Return the number of classes of a model of `transformers` with integer labels.

    This is `num_labels` of a classifier, or the number of rows of a language model's output layer.
    Returns None if it is unknown, because subclasses with another `forward` may have other heads.
    """
    base = base_of_adapter(model)
    name = type(base).__name__
    # Liger kernels replace `forward` by one with the same head.
    if not str(base.forward.__module__).startswith(("transformers.", "liger_kernel.")):
        return None
    config: Any = base.config
    if name.endswith("Classification"):
        if config.problem_type not in (None, "single_label_classification"):
            return None
        # A script that replaces the head may only set the attribute of the model.
        classes = getattr(base, "num_labels", config.num_labels)
        # A model with one label is trained by regression.
        if classes < 2:
            return None
        return classes

    # The classes of a language model are the tokens of its output layer.
    if not name.endswith(("CausalLM", "LMHeadModel", "MaskedLM")):
        return None
    classes = getattr(base.get_output_embeddings(), "out_features", None)
    if classes is None:
        return None
    # resize_token_embeddings of 5.3.0 does not update `out_features` of tied embeddings.
    return max(classes, getattr(config, "vocab_size", 0))


def predicts_next_token(model: nn.Module) -> bool:
    """Return whether a model is a causal language model, whose labels are its inputs.

    This is decided by the name of its class, which is `...ForCausalLM` or listed as causal by
    `transformers`, if that has been imported.

    Args:
        model: the model itself, without wrappers or adapters.
    """
    return _is_causal(type(model), loaded("transformers.models.auto.modeling_auto"))


@functools.lru_cache(maxsize=64)
def _is_causal(model_class: type, auto: Any) -> bool:
    """Return whether a class or one of its base classes is causal.

    Cached, because every step may call it.
    """
    names = {base.__name__ for base in model_class.__mro__}
    if any(name.endswith("ForCausalLM") for name in names):
        return True
    if auto is None:
        return False
    return not names.isdisjoint(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())


def loss_shifts_labels(model: nn.Module) -> bool:
    """Return whether the loss of a model drops the first label of each row.

    The causal loss of `transformers` does. The `loss_type` of the model names its loss.

    Args:
        model: the model; it may be in wrappers or adapters.
    """
    base = base_of_adapter(model)
    config = getattr(base, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        return False
    loss_type = getattr(base, "loss_type", None)
    library = loaded("transformers.loss.loss_utils")
    if library is None:
        return loss_type == "ForCausalLM"
    return library.LOSS_MAPPING.get(loss_type) is library.ForCausalLMLoss


def shifts_smoothed_labels(model: nn.Module) -> bool:
    """Return whether label smoothing shifts the labels of a model.

    As in the reference, this depends only on the name of the class: labels of a subclass with
    another name are not shifted.

    Args:
        model: the model; it may be in wrappers or adapters.
    """
    name = class_of(base_of_adapter(model)).__name__
    auto = loaded("transformers.models.auto.modeling_auto")
    if auto is not None:
        return name in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return name.endswith("ForCausalLM")
