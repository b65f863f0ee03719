"""Whether a model's labels are its inputs, to be compared with what it says one token earlier."""

from __future__ import annotations

import sys
from typing import Any

from .inspection import base_of_adapter, class_of


def predicts_next_token(model: Any) -> bool:
    """Tell whether labels are the inputs themselves, to be shifted by one, as causal language models have it.

    Told by the name of its class: `...ForCausalLM`, or one that `transformers` lists as causal, where that is loaded.

    Args:
        model: the model itself, without wrappers or adapters.
    """
    names = {base.__name__ for base in type(model).__mro__}
    auto = sys.modules.get("transformers.models.auto.modeling_auto")
    listed = set() if auto is None else set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    return bool(names & listed) or any(name.endswith("ForCausalLM") for name in names)


def shifts_smoothed_labels(model: Any) -> bool:
    """Whether label smoothing shifts labels for a model, as the reference decides it: by the class's own name alone.

    A subclass of another name is not shifted there, and what it is derived from is not asked.

    Args:
        model: the model, also in wrappers or adapters.
    """
    name = class_of(base_of_adapter(model)).__name__
    auto = sys.modules.get("transformers.models.auto.modeling_auto")
    if auto is not None:
        return name in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return name.endswith("ForCausalLM")
