"""Optimizers of other libraries, imported lazily; GaLore and APOLLO are in `low_rank`."""

from __future__ import annotations

import logging
import re
from importlib import import_module
from typing import Any

import torch
from torch import nn

from ..common.suggestions import OptimizerNames
from .request import Builder, ClassAndKwargs, OptimizerRequest

logger = logging.getLogger(__name__)


class MissingLibraryError(ImportError, ValueError):
    """An optimizer needs a package, or a version of it, that is not installed.

    The reference raises ImportError for some of them and ValueError for others.
    """


def load(name: OptimizerNames, pip: str, module: str, member: str) -> Any:
    """Import a class of an optional package.

    Args:
        name: the optimizer that needs it.
        pip: argument of `pip install`.
        module: import path.
        member: name in the module.

    Raises:
        MissingLibraryError: says what to install.
    """
    try:
        return getattr(import_module(module), member)
    except (ImportError, AttributeError) as error:
        raise MissingLibraryError(
            f"optim={name.value!r} needs {member}, which cannot be imported from {module!r} "
            f"({error}). Install it with: pip install {pip}"
        ) from error


def _with_numbers_of_adam(pip: str, module: str, member: str) -> Builder:
    """Return the builder of an optimizer that takes the numbers of Adam, and nothing else."""
    return lambda request: (load(request.name, pip, module, member), request.adam)


xla = _with_numbers_of_adam("torch_xla", "torch_xla.amp.syncfree", "AdamW")
npu = _with_numbers_of_adam("torch_npu", "torch_npu.optim", "NpuFusedAdamW")
apex = _with_numbers_of_adam(
    "git+https://github.com/NVIDIA/apex --no-build-isolation", "apex.optimizers", "FusedAdam"
)


def any_precision(request: OptimizerRequest) -> ClassAndKwargs:
    """Return `adamw_anyprecision`."""
    pip = "git+https://github.com/pytorch/torchdistx"
    adamw = load(request.name, pip, "torchdistx.optimizers", "AnyPrecisionAdamW")
    dtypes = {"momentum_dtype": torch.float32, "variance_dtype": torch.float32}
    dtypes["compensation_buffer_dtype"] = torch.bfloat16
    return adamw, {**request.adam, **request.arguments.take(use_kahan_summation=False, **dtypes)}


def torchao(request: OptimizerRequest) -> ClassAndKwargs:
    """Return `adamw_torch_4bit` or `adamw_torch_8bit`."""
    member = "AdamW4bit" if request.name is OptimizerNames.ADAMW_TORCH_4BIT else "AdamW8bit"
    adamw = load(request.name, "'torchao>=0.11'", "torchao.optim", member)
    return adamw, {
        **request.arguments.take(block_size=256, bf16_stochastic_round=False),
        **request.adam,
    }


def schedule_free(request: OptimizerRequest) -> ClassAndKwargs:
    """Return `schedule_free_adamw`, `schedule_free_radam` or `schedule_free_sgd`, which do their
    own warm-up.
    """
    member = {
        OptimizerNames.SCHEDULE_FREE_RADAM: "RAdamScheduleFree",
        OptimizerNames.SCHEDULE_FREE_ADAMW: "AdamWScheduleFree",
        OptimizerNames.SCHEDULE_FREE_SGD: "SGDScheduleFree",
    }[request.name]
    optimizer = load(request.name, "'schedulefree>=1.4'", "schedulefree", member)
    kwargs = {} if request.name is OptimizerNames.SCHEDULE_FREE_SGD else request.adam
    if request.name is not OptimizerNames.SCHEDULE_FREE_RADAM:
        kwargs["warmup_steps"] = request.config.warmup_steps or 0
    own = request.arguments.take(weight_lr_power=2.0, r=0.0)
    return optimizer, {**kwargs, "weight_decay": request.config.weight_decay, **own}


def grokadamw(request: OptimizerRequest) -> ClassAndKwargs:
    """Return `grokadamw`, with its own betas and epsilon, as in the reference."""
    optimizer = load(request.name, "grokadamw", "grokadamw", "GrokAdamW")
    return optimizer, request.arguments.take(
        alpha_init=0.98, lamb=2.0, gamma=0.1, grokking_signal_decay_rate=0.1, gradient_clipping=1.0
    )


def stable_adamw(request: OptimizerRequest) -> ClassAndKwargs:
    """Return `stable_adamw`; "kahan_sum=false" is false, but every text is true in the
    reference.
    """
    optimizer = load(request.name, "torch-optimi", "optimi", "StableAdamW")
    take = request.arguments.take
    given = request.arguments.given
    own = {"max_lr": None, "kahan_sum": None, **take(decouple_lr=False), **given(float, "max_lr")}
    return optimizer, {
        **request.adam,
        "weight_decay": request.config.weight_decay,
        **own,
        **given(bool, "kahan_sum"),
    }


def lomo(request: OptimizerRequest) -> ClassAndKwargs:
    """Return `lomo` or `adalomo`, which take the model and step in the backward pass, see
    `fused`.
    """
    model = request.require_model()
    member = "Lomo" if request.name is OptimizerNames.LOMO else "AdaLomo"
    return load(request.name, "lomo-optim", "lomo_optim", member), {"model": model}


_CLASSES = {"adamw": "AdamW", "ademamix": "AdEMAMix", "lion": "Lion", "rmsprop": "RMSprop"}


def bitsandbytes(request: OptimizerRequest) -> ClassAndKwargs:
    """Return an optimizer of bitsandbytes: names with `bnb`, `8bit`, `32bit` or `paged`, and
    `ademamix`.
    """
    name = request.name.value
    (kind,) = re.findall("|".join(_CLASSES), name)
    optimizer = load(request.name, "bitsandbytes", "bitsandbytes.optim", _CLASSES[kind])
    kwargs: dict[str, Any] = {"optim_bits": 8 if "8bit" in name else 32}
    if kind == "rmsprop":
        return optimizer, {**_rmsprop(request), **kwargs}
    if kind == "lion":
        kwargs["betas"] = request.adam["betas"]
    else:
        kwargs |= _ademamix(request) if kind == "ademamix" else request.adam
    return optimizer, {**kwargs, "is_paged": "paged" in name}


def keep_embeddings_whole(optimizer_class: Any, kwargs: dict[str, Any], model: nn.Module) -> None:
    """Make bitsandbytes keep 32 bits of state for embeddings, whose gradients vary too much for 8.

    Args:
        optimizer_class: any; only 8-bit ones of bitsandbytes are affected.
        kwargs: its arguments.
        model: its modules are looked through.
    """
    if "bitsandbytes" not in str(optimizer_class) or kwargs.get("optim_bits") != 8:
        return
    manager = import_module("bitsandbytes.optim").GlobalOptimManager.get_instance()
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    for module in embeddings:
        manager.register_module_override(module, "weight", {"optim_bits": 32})
    weights = {module.weight.data_ptr(): module.weight.numel() for module in embeddings}
    logger.info(
        "%s embeddings (%s weights) have 32-bit optimizer state.",
        len(weights),
        f"{sum(weights.values()):,}",
    )


def _ademamix(request: OptimizerRequest) -> dict[str, Any]:
    config = request.config
    take = request.arguments.take
    betas = tuple(take(beta1=config.beta1, beta2=config.beta2, beta3=0.9999).values())
    return {
        "betas": betas,
        **take(alpha=5.0, eps=config.epsilon),
        **request.arguments.given(int, "t_alpha", "t_beta3"),
    }


def _rmsprop(request: OptimizerRequest) -> dict[str, Any]:
    """Parse the arguments of RMSprop as numbers; the reference passes texts, with which
    bitsandbytes fails.
    """
    given = request.arguments.given
    numbers = given(float, "alpha", "eps", "weight_decay", "momentum") | given(int, "min_8bit_size")
    return numbers | given(bool, "centered")
