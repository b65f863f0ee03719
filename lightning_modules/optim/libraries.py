"""Build optimizers of other libraries, imported lazily. GaLore and APOLLO are in `low_rank`."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

import torch
from torch import nn

from ..common.enums import OptimizerNames
from .request import Builder, ClassAndKwargs, OptimizerRequest

logger = logging.getLogger(__name__)


class MissingLibraryError(ImportError, ValueError):
    """A package that an optimizer needs is not installed, or its version is not supported.

    The reference raises ImportError for some of them and ValueError for others.
    """


def load(name: OptimizerNames, pip: str, module: str, member: str) -> Any:
    """Import a class of an optional package.

    Args:
        name: the optimizer that needs the class.
        pip: the argument for `pip install`.
        module: import path of the module.
        member: name of the class in the module.

    Raises:
        MissingLibraryError: the package is not installed. The message says how to install it.
    """
    try:
        return getattr(import_module(module), member)
    except (ImportError, AttributeError) as error:
        raise MissingLibraryError(
            f"optim={name.value!r} needs {member}, which cannot be imported from {module!r} "
            f"({error}). Install it with: pip install {pip}"
        ) from error


def _with_adam_arguments(pip: str, module: str, member: str) -> Builder:
    """Return the builder of an optimizer that only accepts Adam's betas and epsilon."""

    def build(request: OptimizerRequest) -> ClassAndKwargs:
        return load(request.name, pip, module, member), request.adam

    return build


build_xla = _with_adam_arguments("torch_xla", "torch_xla.amp.syncfree", "AdamW")
build_npu = _with_adam_arguments("torch_npu", "torch_npu.optim", "NpuFusedAdamW")
build_apex = _with_adam_arguments(
    "git+https://github.com/NVIDIA/apex --no-build-isolation", "apex.optimizers", "FusedAdam"
)


def build_any_precision(request: OptimizerRequest) -> ClassAndKwargs:
    """Return the class and the arguments of `adamw_anyprecision`."""
    pip = "git+https://github.com/pytorch/torchdistx"
    adamw = load(request.name, pip, "torchdistx.optimizers", "AnyPrecisionAdamW")
    kwargs = request.arguments.take(
        use_kahan_summation=False,
        momentum_dtype=torch.float32,
        variance_dtype=torch.float32,
        compensation_buffer_dtype=torch.bfloat16,
    )
    return adamw, {**request.adam, **kwargs}


def build_torchao(request: OptimizerRequest) -> ClassAndKwargs:
    """Return the class and the arguments of `adamw_torch_4bit` or `adamw_torch_8bit`."""
    member = "AdamW8bit"
    if request.name is OptimizerNames.ADAMW_TORCH_4BIT:
        member = "AdamW4bit"
    adamw = load(request.name, "'torchao>=0.11'", "torchao.optim", member)
    kwargs = request.arguments.take(block_size=256, bf16_stochastic_round=False)
    return adamw, {**request.adam, **kwargs}


_SCHEDULE_FREE_CLASSES = {
    OptimizerNames.SCHEDULE_FREE_RADAM: "RAdamScheduleFree",
    OptimizerNames.SCHEDULE_FREE_ADAMW: "AdamWScheduleFree",
    OptimizerNames.SCHEDULE_FREE_SGD: "SGDScheduleFree",
}


def build_schedule_free(request: OptimizerRequest) -> ClassAndKwargs:
    """Return the class and the arguments of a `schedule_free_...` optimizer.

    AdamW and SGD implement the warm-up themselves.
    """
    member = _SCHEDULE_FREE_CLASSES[request.name]
    optimizer = load(request.name, "'schedulefree>=1.4'", "schedulefree", member)

    kwargs: dict[str, Any] = {}
    if request.name is not OptimizerNames.SCHEDULE_FREE_SGD:
        kwargs |= request.adam
    if request.name is not OptimizerNames.SCHEDULE_FREE_RADAM:
        kwargs["warmup_steps"] = request.config.warmup_steps or 0
    kwargs["weight_decay"] = request.config.weight_decay
    kwargs |= request.arguments.take(weight_lr_power=2.0, r=0.0)
    return optimizer, kwargs


def build_grokadamw(request: OptimizerRequest) -> ClassAndKwargs:
    """Return the class and the arguments of `grokadamw`.

    As in transformers, it keeps its own defaults of betas and epsilon.
    """
    optimizer = load(request.name, "grokadamw", "grokadamw", "GrokAdamW")
    return optimizer, request.arguments.take(
        alpha_init=0.98, lamb=2.0, gamma=0.1, grokking_signal_decay_rate=0.1, gradient_clipping=1.0
    )


def build_stable_adamw(request: OptimizerRequest) -> ClassAndKwargs:
    """Return the class and the arguments of `stable_adamw`.

    `optim_args="kahan_sum=false"` disables Kahan summation. In transformers any value enables it.
    """
    optimizer = load(request.name, "torch-optimi", "optimi", "StableAdamW")
    kwargs: dict[str, Any] = {
        **request.adam,
        "weight_decay": request.config.weight_decay,
        "max_lr": None,
        "kahan_sum": None,
    }
    kwargs |= request.arguments.take(decouple_lr=False)
    kwargs |= request.arguments.pop_given(float, "max_lr")
    kwargs |= request.arguments.pop_given(bool, "kahan_sum")
    return optimizer, kwargs


def build_lomo(request: OptimizerRequest) -> ClassAndKwargs:
    """Return the class and the arguments of `lomo` or `adalomo`.

    They are built from the model, and step in the backward pass.
    """
    model = request.require_model()
    member = "AdaLomo"
    if request.name is OptimizerNames.LOMO:
        member = "Lomo"
    return load(request.name, "lomo-optim", "lomo_optim", member), {"model": model}


_BITSANDBYTES_CLASSES = {
    "adamw": "AdamW",
    "ademamix": "AdEMAMix",
    "lion": "Lion",
    "rmsprop": "RMSprop",
}
"""Classes by the part of the optimizer's name that names the algorithm."""


def build_bitsandbytes(request: OptimizerRequest) -> ClassAndKwargs:
    """Return the class and the arguments of a bitsandbytes optimizer.

    These are `ademamix`, and names with `bnb`, `8bit`, `32bit` or `paged`.
    """
    name = request.name.value
    algorithm = next(part for part in _BITSANDBYTES_CLASSES if part in name)
    member = _BITSANDBYTES_CLASSES[algorithm]
    optimizer = load(request.name, "bitsandbytes", "bitsandbytes.optim", member)
    optim_bits = 32
    if "8bit" in name:
        optim_bits = 8

    # RMSprop has no paged version, and accepts other arguments.
    if algorithm == "rmsprop":
        return optimizer, {**_rmsprop_arguments(request), "optim_bits": optim_bits}
    if algorithm == "lion":
        kwargs = {"betas": request.adam["betas"]}
    elif algorithm == "ademamix":
        kwargs = _ademamix_arguments(request)
    else:
        kwargs = request.adam
    return optimizer, {**kwargs, "optim_bits": optim_bits, "is_paged": "paged" in name}


def skip_embedding_quantization(
    optimizer_class: object, kwargs: dict[str, Any], model: nn.Module
) -> None:
    """Make bitsandbytes use 32-bit states for embeddings, whose gradients vary too much for 8 bits.

    Args:
        optimizer_class: any optimizer class. Only 8-bit ones of bitsandbytes are affected.
        kwargs: the arguments of the optimizer.
        model: the model whose embeddings are registered.
    """
    if "bitsandbytes" not in str(optimizer_class) or kwargs.get("optim_bits") != 8:
        return
    manager = import_module("bitsandbytes.optim").GlobalOptimManager.get_instance()

    # Count tied embeddings, which share memory, only once.
    sizes: dict[int, int] = {}
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
            sizes[module.weight.data_ptr()] = module.weight.numel()
    logger.info(
        "%s embeddings (%s weights) have 32-bit optimizer state.",
        len(sizes),
        f"{sum(sizes.values()):,}",
    )


def _ademamix_arguments(request: OptimizerRequest) -> dict[str, object]:
    config = request.config
    arguments = request.arguments
    betas = arguments.take(beta1=config.beta1, beta2=config.beta2, beta3=0.9999)
    return {
        "betas": (betas["beta1"], betas["beta2"], betas["beta3"]),
        **arguments.take(alpha=5.0, eps=config.epsilon),
        **arguments.pop_given(int, "t_alpha", "t_beta3"),
    }


def _rmsprop_arguments(request: OptimizerRequest) -> dict[str, object]:
    """Return the arguments of RMSprop, converted to numbers.

    The reference passes strings, with which bitsandbytes fails.
    """
    arguments = request.arguments
    return {
        **arguments.pop_given(float, "alpha", "eps", "weight_decay", "momentum"),
        **arguments.pop_given(int, "min_8bit_size"),
        **arguments.pop_given(bool, "centered"),
    }
