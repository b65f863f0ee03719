"""Whether a model's labels are its inputs, to be compared with what it says one token earlier."""

from __future__ import annotations

import sys
from typing import Any


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
