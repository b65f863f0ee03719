"""Ask whether a model is compiled, since hooks of a compiled model would be compiled too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from ..facade import TrainingArguments


def is_compiled(args: TrainingArguments | None, model: nn.Module | None) -> bool:
    """Return whether the model is compiled in place, so that its hooks would be traced.

    That is by `torch_compile` or `model.compile()`.
    """
    if getattr(args, "torch_compile", False):
        return True
    return getattr(model, "_compiled_call_impl", None) is not None
