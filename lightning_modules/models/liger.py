"""Apply Liger kernels to models of `transformers`. The optional package is imported lazily."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .pretrained import is_pretrained
from .wrappers import base_of_adapter

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)


def liger_patch() -> Callable[..., None]:
    """Return the function of `liger_kernel` that replaces the layers of a model.

    Raises:
        ImportError: the package or one of its dependencies is not installed; the message says how
            to install it.
    """
    try:
        return import_module("liger_kernel.transformers")._apply_liger_kernel_to_instance
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"use_liger_kernel=True needs `pip install 'lightrainer[liger]'` ({error})."
        ) from error


def apply_liger_kernels(model: nn.Module, config: Mapping[str, Any] | None) -> None:
    """Replace layers of a model by Liger kernels, in place.

    Works like `transformers.integrations.apply_liger_kernel`.

    Args:
        model: a model of `transformers`, or a PEFT model around one. Other models only cause a
            warning.
        config: options of the kernels by name, such as `{"rope": False}`; None for the defaults.
    """
    patch = liger_patch()
    base = base_of_adapter(model)
    if is_pretrained(base):
        patch(model=base, **(config or {}))
    else:
        logger.warning(
            "use_liger_kernel=True has no effect on %s, which is not a model of transformers.",
            type(base).__name__,
        )


def can_skip_logits(model: nn.Module) -> bool:
    """Return whether a patched model can compute its loss without materializing the logits."""
    return "skip_logits" in inspect.signature(base_of_adapter(model).forward).parameters
