"""Inspect a model, its layers and its parameters; placeholder optimizer and schedule of layer-wise runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...lightning_modules.models.inspection import base_of_adapter
from ...lightning_modules.models.special_tokens import align_special_tokens

__all__ = [
    "LayerWiseDummyOptimizer",
    "LayerWiseDummyScheduler",
    "align_special_tokens",
    "check_target_module_exists",
    "get_model_param_count",
    "get_module_class_from_name",
    "get_parameter_names",
    "is_attention_mask_causal",
    "is_optimizer_factory",
    "unwrap_peft_model",
    "validate_quantization_for_training",
]


def _is_peft_model(model: Any) -> bool:
    """As `transformers.trainer_utils._is_peft_model`, without importing peft."""
    return base_of_adapter(model) is not model


def unwrap_peft_model(model: Any) -> Any:
    """As `transformers.trainer_utils.unwrap_peft_model`: return the model inside adapters, or `model` itself."""
    return base_of_adapter(model)


def validate_quantization_for_training(model: Any) -> None:
    """As `transformers.trainer_utils.validate_quantization_for_training`: check that a quantized model can be trained.

    Raises:
        ValueError: The model cannot be trained; names the reason.
    """
    quantizer = getattr(model, "hf_quantizer", None)
    if not getattr(model, "is_quantized", False) or getattr(model, "_hf_peft_config_loaded", False):
        return
    if hasattr(model, "_orig_mod"):
        raise ValueError(
            "A quantized model cannot be trained when it is compiled already. Pass it to the Trainer uncompiled, with "
            "adapters of peft; TrainingArguments(torch_compile=True) compiles it."
        )
    if not _is_peft_model(model) and not getattr(quantizer, "is_qat_trainable", False):
        raise ValueError("The weights of a quantized model cannot be trained. Put adapters on top of it, with peft.")
    if not getattr(quantizer, "is_trainable", False):
        method = getattr(getattr(quantizer, "quantization_config", None), "quant_method", "an unknown method")
        raise ValueError(f"The model is quantized with {method}, which cannot be trained. Quantize it otherwise.")


def get_parameter_names(
    model: nn.Module,
    forbidden_layer_types: Sequence[type],
    forbidden_layer_names: Iterable[str] | None = None,
) -> list[str]:
    """As `transformers.trainer_pt_utils.get_parameter_names`: leave out the parameters of some layers.

    Args:
        model: the model.
        forbidden_layer_types: layers whose parameters are left out.
        forbidden_layer_names: regular expressions; a parameter is left out if one is found in its lower-case name, full
            or relative to a layer.
    """
    patterns = [re.compile(pattern) for pattern in forbidden_layer_names or ()]
    return _parameter_names(model, tuple(forbidden_layer_types), patterns)


def _parameter_names(model: nn.Module, types: tuple[type, ...], patterns: list[re.Pattern[str]]) -> list[str]:
    below = [
        f"{name}.{inner}"
        for name, child in model.named_children()
        if not isinstance(child, types)
        for inner in _parameter_names(child, types, patterns)
    ]
    found = [*below, *model._parameters]
    return [name for name in found if not any(pattern.search(name.lower()) for pattern in patterns)]


def get_model_param_count(model: nn.Module, trainable_only: bool = False) -> int:
    """As `transformers.trainer_pt_utils.get_model_param_count`: count elements, DeepSpeed's shards included."""
    counted = [parameter for parameter in model.parameters() if parameter.requires_grad or not trainable_only]
    return sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in counted)


def get_module_class_from_name(module: nn.Module, name: str) -> type | None:
    """As `transformers.trainer_pt_utils.get_module_class_from_name`: return the first layer class of that name."""
    return next((type(layer) for layer in module.modules() if type(layer).__name__ == name), None)


def check_target_module_exists(
    optim_target_modules: str | Sequence[str], key: str, return_is_regex: bool = False
) -> bool | tuple[bool, bool]:
    """As `transformers.trainer_utils.check_target_module_exists`: match a module's name against target modules.

    Args:
        optim_target_modules: a regular expression for the whole name, or a list of parts of names and of expressions.
        key: the name of the module.
        return_is_regex: also return True if a regular expression matched.
    """
    if isinstance(optim_target_modules, str):
        found, by_expression = re.fullmatch(optim_target_modules, key) is not None, optim_target_modules != key
    else:
        literally = any(part in key for part in optim_target_modules)
        by_expression = not literally and any(re.fullmatch(part, key) for part in optim_target_modules)
        found = literally or by_expression
    return (found, by_expression) if return_is_regex else found


def is_attention_mask_causal(attention_mask: torch.Tensor | None) -> bool:
    """As `transformers.trainer_pt_utils.is_attention_mask_causal`: return True if no position attends to a later one.

    Args:
        attention_mask: of shape (batch, length), always causal; or of (batch, length, length) or (batch, heads, length,
            length), of which the first is checked: 0 or a large negative number is masked.
    """
    if attention_mask is None or attention_mask.dim() == 2:
        return True
    if attention_mask.dim() not in (3, 4):
        return False
    if attention_mask.shape[-1] <= 1:
        return True
    first = attention_mask.flatten(0, -3)[0]
    ahead = torch.triu(first, diagonal=1)
    return bool((ahead <= 1e-6).all() or (ahead < -1e4).all())


def is_optimizer_factory(optimizer_cls_or_factory: Any) -> bool:
    """As `transformers.trainer_optimizer.is_optimizer_factory`: return True for anything but an optimizer class."""
    is_class = isinstance(optimizer_cls_or_factory, type)
    return not (is_class and issubclass(optimizer_cls_or_factory, Optimizer))


class LayerWiseDummyOptimizer(Optimizer):
    """As `transformers.trainer_pt_utils.LayerWiseDummyOptimizer`: does nothing; those of the layers do.

    Args:
        optimizer_dict: the optimizer of each parameter.
        **kwargs: `lr`, the learning rate that its own group shows.
    """

    def __init__(self, optimizer_dict: Mapping[Any, Optimizer] | None = None, **kwargs: Any) -> None:
        self.optimizer_dict = optimizer_dict
        super().__init__([torch.randn(1, 1)], {"lr": kwargs.get("lr", 1e-3)})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do nothing."""


class LayerWiseDummyScheduler(LRScheduler):
    """As `transformers.trainer_pt_utils.LayerWiseDummyScheduler`: shows the rates of the layers.

    Args:
        *args: not used.
        **kwargs: `lr`, shown where there are no layers, and what `LayerWiseDummyOptimizer` takes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.default_lr = kwargs["lr"]
        super().__init__(LayerWiseDummyOptimizer(**kwargs), -1)

    def get_lr(self) -> list[float | torch.Tensor]:
        """Return the rate of each group of each optimizer."""
        optimizer: Any = self.optimizer
        inner = optimizer.optimizer_dict
        if inner is None:
            return [self.default_lr]
        groups = chain.from_iterable(one.param_groups for one in inner.values())
        return [group["lr"] for group in groups]

    def _get_closed_form_lr(self) -> list[Any]:
        return self.base_lrs
