"""Load PEFT adapters from a checkpoint folder, and find the weights that PEFT does not save."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

from safetensors.torch import load_file
from torch import Tensor, nn

from ..common.libraries import is_instance, loaded
from ..common.parameter_rules import plain_name
from ..common.torch_files import load_torch
from ..distributed.sharding import FullModel
from ..models.pretrained import is_pretrained
from ..models.signatures import accepted_arguments
from ..models.wrappers import unwrap_model, without_inner_wrappers
from .tied_weights import required_missing, tensor_key
from .weight_formats import ADAPTER_FILES, DEFAULT_ADAPTER, LoadReport, first_existing_file

_log = logging.getLogger(__name__)

EXTRA_WEIGHTS_NAME = "trained_beside_adapter.safetensors"
"""File with the weights that `weights_not_saved_by_peft` returns, by their names in the model."""

_IMPORTANCE_ATTRIBUTES = ("ipt", "exp_avg_ipt", "exp_avg_unc")
"""Attributes of AdaLoRA's `rankallocator` with the importance scores of weights."""

_PEFT_PREFIX = "base_model.model."
"""Prefix of the weight names in the file of an adapter that `add_adapter` added to a model."""


def load_adapters(
    model: nn.Module | FullModel, folder: Path, adapters: Mapping[str, Path]
) -> LoadReport:
    """Load all adapters of a PEFT model from a checkpoint.

    Active adapters stay active and trainable ones stay trainable. If both the folder and the model
    have a single adapter, their names may differ.

    Args:
        model: a `peft.PeftModel`, or a model of `transformers` after `add_adapter`. Pass a sharded
            model as a `FullModel`.
        folder: the folder of the checkpoint.
        adapters: the folder of each adapter, as returned by `adapter_folders`.

    Raises:
        ValueError: the model is not a PEFT model, or has an adapter that the folder lacks.
    """
    with _opened_for_loading(model) as adapted:
        adapters = _folders_by_adapter(adapted, folder, adapters)
        extra_weights = _read_extra_weights(folder)
        _load_importance(adapted, extra_weights)
        without_file = [name for name in adapter_names(adapted) if name not in adapters]
        _warn_of_missing_adapters(folder, without_file, extra_weights)

        trained = _trained_names(adapted)
        missing = _missing_base_weights(adapted, trained, adapters.values(), extra_weights)
        unexpected: list[str] = []

        for name, adapter_folder in adapters.items():
            # The extra weights, which are loaded below, hold either all weights of an adapter or
            # none.
            if _names_of_adapter(name, extra_weights):
                _load_rank_pattern(adapted, name, adapter_folder)
                adapter_weights = _names_of_adapter(name, trained)
                missing += [weight for weight in adapter_weights if weight not in extra_weights]
                continue

            _require_prompt_encoder(adapted, name, folder)
            mismatches = _load_adapter(adapted, name, adapter_folder)
            # PEFT also lists the weights of other adapters and those of prompts, which it loads
            # separately.
            missing += _names_of_adapter(name, getattr(mismatches, "missing_keys", ()))
            unexpected_keys: Iterable[str] = getattr(mismatches, "unexpected_keys", ())
            unexpected += [key for key in unexpected_keys if "." in key]

        unexpected += adapted.load_state_dict(extra_weights, strict=False).unexpected_keys
        # A weight that several adapters share is stored once.
        return LoadReport(required_missing(adapted, missing), tuple(unexpected))


def _folders_by_adapter(
    model: Any, folder: Path, adapters: Mapping[str, Path]
) -> Mapping[str, Path]:
    """Return the folders of the adapters to load, by their names in the model.

    Raises:
        ValueError: the model has no adapters, or one that the folder lacks.
    """
    # transformers saves only the active adapter; the others are among the extra weights.
    if has_added_adapter(model):
        active = model.active_adapters()[0]
        return {active: adapters[DEFAULT_ADAPTER]}

    if not is_peft_model(model):
        raise ValueError(
            f"{folder} holds only the weights of an adapter, and {type(model).__name__} is not a "
            "PEFT model; wrap it with peft.get_peft_model(...), or call add_adapter(...), as in "
            "the run that saved the folder"
        )

    # With one adapter on each side the name does not matter.
    names = list(model.peft_config)
    if len(names) == 1 and list(adapters) == [DEFAULT_ADAPTER]:
        return {names[0]: folder}

    _require_adapters(names, list(adapters), folder)
    return {name: adapters[name] for name in names}


def _warn_of_missing_adapters(
    folder: Path, without_file: list[str], extra_weights: Mapping[str, Tensor]
) -> None:
    """Warn of adapters added by `add_adapter` that the checkpoint does not contain.

    Args:
        folder: the folder of the checkpoint.
        without_file: adapters without a file of their weights.
        extra_weights: weights from `EXTRA_WEIGHTS_NAME`, which may include those of the adapters.
    """
    for name in without_file:
        if not _names_of_adapter(name, extra_weights):
            _log.warning(
                "%s has no weights for the adapter %r, which keeps its present values.",
                folder,
                name,
            )


def _trained_names(model: nn.Module) -> list[str]:
    """Return the names of the trained weights, without gathering those of a sharded model."""
    named = nn.Module.named_parameters(unwrap_model(model), remove_duplicate=False)
    return [plain_name(name) for name, weight in named if weight.requires_grad]


def _missing_base_weights(
    model: nn.Module,
    trained: list[str],
    folders: Iterable[Path],
    extra_weights: Mapping[str, Tensor],
) -> list[str]:
    """Return the names of trained base model weights that the checkpoint does not contain.

    PEFT's `load_adapter` does not report these. Adapter files may contain some of them, such as
    biases.
    """
    base_weights: list[str] = []
    for name in trained:
        if name not in extra_weights and is_base_weight(model, name):
            base_weights.append(name)
    if not base_weights:
        return []

    names_in_files: set[str] = set()
    for folder in folders:
        names_in_files.update(_read_adapter_file(folder))
    return [name for name in base_weights if names_in_files.isdisjoint((name, _PEFT_PREFIX + name))]


def _read_adapter_file(folder: Path) -> dict[str, Tensor]:
    """Read the weights file of an adapter."""
    file = first_existing_file(folder, ADAPTER_FILES)
    assert file is not None
    if file.suffix == ".safetensors":
        return load_file(file)
    return load_torch(file)


def _load_adapter(model: Any, name: str, folder: Path) -> Any:
    """Load an adapter as PEFT does, and return PEFT's report of mismatched names."""
    if not has_added_adapter(model):
        options = accepted_arguments(
            model.load_adapter, is_trainable=True, autocast_adapter_dtype=False, torch_device="cpu"
        )
        return model.load_adapter(folder, name, **options)

    # The model's own `load_adapter` (of transformers) would add another adapter.
    weights: dict[str, Tensor] = {}
    for weight, value in _read_adapter_file(folder).items():
        own_name = weight.removeprefix(_PEFT_PREFIX)
        weights[own_name] = value
    return loaded("peft").set_peft_model_state_dict(model, weights, name)


def _importance_of_ranks(model: Any) -> dict[str, dict[str, Tensor]]:
    """Return AdaLoRA's importance scores, by the prefix of their names in a checkpoint."""
    allocator = getattr(getattr(model, "base_model", None), "rankallocator", None)
    if allocator is None:
        return {}
    importance: dict[str, dict[str, Tensor]] = {}
    for kind in _IMPORTANCE_ATTRIBUTES:
        importance[f"rankallocator.{kind}."] = getattr(allocator, kind)
    return importance


def _load_importance(model: Any, extra_weights: dict[str, Tensor]) -> None:
    """Move AdaLoRA's importance scores from the extra weights to the model."""
    for prefix, importance in _importance_of_ranks(model).items():
        keys = [key for key in extra_weights if key.startswith(prefix)]
        device = next(model.parameters()).device
        for key in keys:
            name = key.removeprefix(prefix)
            importance[name] = extra_weights.pop(key).to(device)


def _load_rank_pattern(model: Any, adapter: str, folder: Path) -> None:
    """Restore the rank pattern by which AdaLoRA masks weights in its last steps."""
    config_file = folder / "adapter_config.json"
    if model.peft_config[adapter].peft_type == "ADALORA" and config_file.is_file():
        config = json.loads(config_file.read_text(encoding="utf-8"))
        model.peft_config[adapter].rank_pattern = config["rank_pattern"]


def weights_not_saved_by_peft(model: Any, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights that training needs but PEFT's `save_pretrained` does not save.

    These are the trained weights and the batch norm statistics of the base model, and all weights
    of adapters that PEFT does not save in full: for a prompt encoder it saves only the encoded
    prompt, for AdaLoRA only the ranks in use, without the importance scores that select them. Of
    adapters added by `add_adapter` only the active one is saved.

    Args:
        model: a `peft.PeftModel`, or a model of `transformers` after `add_adapter`.
        state: its weights, by their names in the model.
    """
    # Training needs all adapter weights, and the base model weights that change.
    needed = _running_statistics(model)
    for name, weight in model.named_parameters():
        if weight.requires_grad or not is_base_weight(model, name):
            needed.append(name)

    saved = _keys_saved_by_peft(model, state)
    names_in_state = [name for name in needed if name in state]
    left_out = {name for name in names_in_state if tensor_key(state[name]) not in saved}

    # Keep all weights of an adapter or none, so that only one of the two files is read for it.
    for adapter in model.peft_config:
        adapter_weights = _names_of_adapter(adapter, names_in_state)
        if not left_out.isdisjoint(adapter_weights):
            left_out.update(adapter_weights)
    weights = {name: state[name] for name in names_in_state if name in left_out}
    for prefix, importance in _importance_of_ranks(model).items():
        for name, values in importance.items():
            weights[prefix + name] = values
    return weights


def _keys_saved_by_peft(model: Any, state: Mapping[str, Tensor]) -> set[Hashable]:
    """Return the tensor keys of the weights that `save_pretrained` saves unchanged."""
    adapters = list(model.peft_config)
    # Of adapters added by `add_adapter`, transformers saves only the active ones.
    if has_added_adapter(model):
        adapters = model.active_adapters()

    saved: set[Hashable] = set()
    for adapter in adapters:
        for weight in _weights_saved_by_peft(adapter, model, state):
            saved.add(tensor_key(weight))
    return saved


def _weights_saved_by_peft(adapter: str, model: Any, state: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the weights of the model that PEFT stores unchanged in the file of an adapter.

    For a prompt with an encoder it stores none of them.
    """
    if not model.peft_config[adapter].is_prompt_learning:
        return list(_peft_state_dict(model, state, adapter).values())
    if _has_encoder(model, adapter):
        return []
    prompt = f"prompt_encoder.{adapter}."
    return [weight for name, weight in state.items() if name.startswith(prompt)]


def _peft_state_dict(
    model: nn.Module, state: Mapping[str, Tensor], adapter: str
) -> dict[str, Tensor]:
    """Return the weights of an adapter by their names in PEFT's file. Not for prompts."""
    return loaded("peft").get_peft_model_state_dict(
        model, dict(state), adapter, save_embedding_layers=False
    )


def _running_statistics(model: nn.Module) -> list[str]:
    """Return the names of batch norm statistics, which change even in a frozen model."""
    names: list[str] = []
    modules = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
    for path, module in modules:
        if not getattr(module, "track_running_stats", False):
            continue
        for name, _ in module.named_buffers(recurse=False):
            names.append(f"{path}.{name}")
    return names


def _has_encoder(model: Any, adapter: str) -> bool:
    """Return whether an adapter is a prompt produced by an encoder.

    That is the case for p-tuning, prefix tuning with a projection, and context-aware prompt tuning.
    PEFT saves all weights of the other kinds.
    """
    config = model.peft_config[adapter]
    may_have_encoder = config.peft_type in ("P_TUNING", "PREFIX_TUNING", "CPT")
    if not config.is_prompt_learning or not may_have_encoder:
        return False
    return list(model.prompt_encoder[adapter].state_dict()) != ["embedding.weight"]


def _read_extra_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights that `weights_not_saved_by_peft` returned when the checkpoint was saved."""
    file = folder / EXTRA_WEIGHTS_NAME
    if not file.is_file():
        return {}
    return load_file(file)


def _require_prompt_encoder(model: nn.Module, adapter: str, folder: Path) -> None:
    """Raise a ValueError if only the encoded prompt of an adapter was saved, not its encoder."""
    if _has_encoder(model, adapter):
        raise ValueError(
            f"{folder} has only the encoded prompt of {adapter!r}, as other libraries save it, not "
            "the weights of its encoder. Training cannot resume from it: use a folder with "
            f"{EXTRA_WEIGHTS_NAME}, or PeftModel.from_pretrained for inference."
        )


def _opened_for_loading(model: nn.Module | FullModel) -> AbstractContextManager[Any]:
    if isinstance(model, FullModel):
        return model.reading_full()
    return with_peft_names(model)


@contextmanager
def with_peft_names(model: nn.Module) -> Generator[Any]:
    """Give the modules of a PEFT model the names that PEFT expects, within the `with` block.

    Wrappers inside the model are removed, and so is a `state_dict` method set on the instance: some
    scripts set one that returns the adapter only, where PEFT does not find the adapter's weights.
    """
    attributes: dict[str, Any] = model.__dict__
    script_state_dict = attributes.pop("state_dict", None)
    try:
        with without_inner_wrappers(model):
            yield model
    finally:
        if script_state_dict is not None:
            model.state_dict = script_state_dict


def _require_adapters(in_model: list[str], saved: list[str], folder: Path) -> None:
    """Raise a ValueError if the folder lacks an adapter of the model; warn of surplus ones."""
    missing = [name for name in in_model if name not in saved]
    if missing:
        raise ValueError(
            f"{folder} has no weights for the adapter {', '.join(map(repr, missing))} of the "
            f"model, only for {', '.join(map(repr, saved))}. Add the same adapters to the model as "
            "in the run that wrote it."
        )

    surplus = [name for name in saved if name not in in_model]
    if surplus:
        _log.warning(
            "%s has adapters that the model does not have; they are ignored: %s.",
            folder,
            ", ".join(surplus),
        )


def saved_weights(model: nn.Module, named: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the weights that a checkpoint of a model contains.

    For a PEFT model these are the adapters and other trainable weights.

    Args:
        model: the model.
        named: all weights of the model by name.
    """
    saved: list[Tensor] = []
    for name, tensor in named.items():
        if tensor.requires_grad or not is_base_weight(model, name):
            saved.append(tensor)
    return saved


def _names_of_adapter(adapter: str, names: Iterable[str]) -> list[str]:
    """Return the names that belong to weights of an adapter."""
    return [name for name in names if _belongs_to(adapter, name)]


def _belongs_to(adapter: str, name: str) -> bool:
    return f".{adapter}." in name or name.endswith(f".{adapter}")


def is_base_weight(model: nn.Module, name: str) -> bool:
    """Return whether a weight of a PEFT model belongs to the base model, not to an adapter.

    Returns False for other models.
    """
    adapters = adapter_names(model)
    if not adapters:
        return False
    return not any(_belongs_to(adapter, name) for adapter in adapters)


def adapter_names(model: Any) -> list[str]:
    """Return the adapter names of a model whose `save_pretrained` saves only adapters.

    That is a `peft.PeftModel`, or a model of `transformers` after `add_adapter`. Empty for other
    models.
    """
    model = unwrap_model(model)
    saves_adapters = is_peft_model(model) or has_added_adapter(model)
    if not saves_adapters:
        return []
    return list(model.peft_config)


def has_added_adapter(model: nn.Module) -> bool:
    """Return whether `add_adapter` has added an adapter to a model of `transformers`."""
    return is_pretrained(model) and bool(getattr(model, "_hf_peft_config_loaded", False))


def saves_itself(model: nn.Module) -> bool:
    """Return whether a model is saved by its own `save_pretrained`.

    That is the case for models of `transformers`, PEFT and `huggingface_hub`. In other classes a
    method of that name may do something else, or a wrapper may forward it to an inner model.
    """
    has_hub_mixin = is_instance(model, "huggingface_hub.hub_mixin", "PyTorchModelHubMixin")
    return is_pretrained(model) or is_peft_model(model) or has_hub_mixin


def is_peft_model(model: Any) -> bool:
    """Return whether a model, without its wrappers, is a `peft.PeftModel`."""
    peft = loaded("peft")
    return peft is not None and isinstance(unwrap_model(model), peft.PeftModel)


def peft_names(model: nn.Module, state: Mapping[str, Any]) -> dict[str, str]:
    """Map PEFT's names of the active adapter's weights to their names in the model.

    PEFT's names do not include the name of the adapter. `accelerate` uses them in sharded
    checkpoints. Empty for other models, and for prompts.

    Args:
        model: the model.
        state: its weights, by their names in the model.
    """
    inner = unwrap_model(model)
    if not is_peft_model(inner):
        return {}
    active = inner.active_adapters[0]
    if inner.peft_config[active].is_prompt_learning:
        return {}

    with without_inner_wrappers(inner):
        renamed = _peft_state_dict(inner, state, active)

    # PEFT renames tensors without copying them, so they are matched by identity.
    own_names = {id(value): name for name, value in state.items()}
    pairs: dict[str, str] = {}
    for name, value in renamed.items():
        if id(value) in own_names and name not in state:
            pairs[name] = own_names[id(value)]
    return pairs
