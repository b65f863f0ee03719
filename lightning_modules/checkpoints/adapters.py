"""Load adapters of PEFT from a folder into a model."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..common.libraries import loaded
from ..models.inspection import unwrap_model, without_inner_wrappers
from .forms import DEFAULT_ADAPTER, LoadReport

_log = logging.getLogger(__name__)


def load_adapters(model: Any, folder: Path, adapters: Mapping[str, Path]) -> LoadReport:
    """As `Trainer._load_from_checkpoint` for PEFT models, but all adapters are loaded, and no setting is changed.

    The active adapters stay active, and trainable ones trainable. An adapter that is alone in its folder, not in a
    subfolder, is loaded into a model with one adapter of any name.

    Args:
        model: known by `load_adapter` and a list `active_adapters`; or one that is sharded, as a `WholeModel`.
        folder: the checkpoint.
        adapters: the folder of each adapter, see `adapter_folders`.

    Raises:
        ValueError: it is not a PEFT model, or has an adapter that the folder lacks.
    """
    with model.reading_whole() if hasattr(model, "sharded") else without_inner_wrappers(model) as adapted:
        active = getattr(adapted, "active_adapters", None)
        if not hasattr(adapted, "load_adapter") or not active or callable(active):
            raise ValueError(
                f"{folder} holds only the weights of an adapter, and {type(adapted).__name__} is not a PEFT model with "
                "an active adapter; wrap it with peft.get_peft_model(...) as in the run that saved the folder"
            )
        names = list(getattr(adapted, "peft_config", active))
        if len(names) == 1 and list(adapters) == [DEFAULT_ADAPTER]:
            adapters = {names[0]: folder}
        _compare(names, list(adapters), folder)
        options = accepted(
            adapted.load_adapter, {"is_trainable": True, "autocast_adapter_dtype": False, "torch_device": "cpu"}
        )
        missing: list[str] = []
        unexpected: list[str] = []
        for name in names:
            found = adapted.load_adapter(adapters[name], name, **options)
            # PEFT lists the weights of other adapters too, and those of prompts, which it loads by itself.
            missing += [key for key in getattr(found, "missing_keys", ()) if _is_of(name, key)]
            unexpected += [key for key in getattr(found, "unexpected_keys", ()) if "." in key]
        return LoadReport(tuple(missing), tuple(unexpected))


def _compare(own: list[str], there: list[str], folder: Path) -> None:
    lacking = [name for name in own if name not in there]
    if lacking:
        raise ValueError(
            f"{folder} has no weights for the adapter {', '.join(map(repr, lacking))} of the model, only for "
            f"{', '.join(map(repr, there))}. Give the model the adapters of the run that wrote it."
        )
    if others := [name for name in there if name not in own]:
        _log.warning(
            "%s has adapters that the model does not have, and that are not loaded: %s.", folder, ", ".join(others)
        )


def saved_weights(model: Any, named: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the weights that a checkpoint of a model holds: for PEFT only adapters and other trainable weights.

    Args:
        model: the model.
        named: all of its weights.
    """
    is_whole = type(model).__name__ == "PeftMixedModel"
    return [tensor for name, tensor in named.items() if is_whole or tensor.requires_grad or not is_of_base(model, name)]


def _is_of(adapter: str, name: str) -> bool:
    return f".{adapter}." in name or name.endswith(f".{adapter}")


def is_of_base(model: Any, name: str) -> bool:
    """Return whether a weight of a PEFT model belongs to none of its adapters; False for other models."""
    adapters = getattr(model, "peft_config", None) or ()
    return bool(adapters) and not any(_is_of(adapter, name) for adapter in adapters)


def is_peft_model(model: Any) -> bool:
    """Return whether a model, or the one in its wrappers, is a `peft.PeftModel`."""
    peft = loaded("peft")
    return peft is not None and isinstance(unwrap_model(model), peft.PeftModel)


def names_by_peft(model: Any, state: Mapping[str, Any]) -> dict[str, str]:
    """Return the names that PEFT gives the weights of the active adapter, without its own, and those in the model.

    `accelerate` knows only these in the parts of processes. Empty for other models, and for prompts.

    Args:
        model: the model.
        state: its weights, by their names in the model.
    """
    peft, inner = loaded("peft"), unwrap_model(model)
    if peft is None or not is_peft_model(inner):
        return {}
    active = inner.active_adapters[0]
    if inner.peft_config[active].is_prompt_learning:
        return {}
    own = {id(value): name for name, value in state.items()}
    with without_inner_wrappers(inner):
        given = peft.get_peft_model_state_dict(inner, dict(state), active, save_embedding_layers=False)
    return {name: own[id(value)] for name, value in given.items() if id(value) in own and name not in state}


def accepted(function: Callable[..., Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the wanted keyword arguments that have a value and that the function accepts."""
    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in wanted.items() if value is not None and (takes_all or name in parameters)}
