"""Check that packages required by the arguments are installed."""

from __future__ import annotations

from typing import Any

from ...lightning_modules.common.libraries import is_installed
from ...lightning_modules.common.suggestions import optimizer_name
from ...lightning_modules.common.versions import installed, is_older

# The first key contained in an optimizer's name selects its library.
_OPTIMIZERS = {
    "galore": ("galore_torch", "galore-torch"),
    "apollo": ("apollo_torch", "apollo-torch"),
    "schedule_free": ("schedulefree", "'schedulefree>=1.4'"),
    "stable_adamw": ("optimi", "torch-optimi"),
    "grokadamw": ("grokadamw", "grokadamw"),
    "lomo": ("lomo_optim", "lomo-optim"),
    "anyprecision": ("torchdistx", "git+https://github.com/pytorch/torchdistx"),
    "apex": ("apex", "git+https://github.com/NVIDIA/apex --no-build-isolation"),
    "npu": ("torch_npu", "torch_npu"),
    "xla": ("torch_xla", "torch_xla"),
    "torch_": ("torchao", "'torchao>=0.11'"),
    "bnb": ("bitsandbytes", "bitsandbytes"),
    "bit": ("bitsandbytes", "bitsandbytes"),
    "ademamix": ("bitsandbytes", "bitsandbytes"),
}
DEEPSPEED_AT_LEAST = "0.19"  # some before it train with wrong losses: stage 2 with offload and accumulation
_OF_TORCH = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop")


def require_packages(args: Any) -> None:
    """Require the packages of the arguments, in runs of several processes.

    A single process may plan a run elsewhere; it checks the same when a training begins.

    Args:
        args: the training arguments.

    Raises:
        ImportError: a package is missing.
    """
    if args.deepspeed:
        require_deepspeed()
    if args.fsdp and isinstance(args.fsdp_config, dict) and args.fsdp_config.get("xla"):
        from ..distributed.xla_device import require_xla

        require_xla("fsdp_config={'xla': True}")
    if args.use_liger_kernel and not is_installed("liger_kernel"):
        from ...lightning_modules.models.liger import liger_patch

        liger_patch()
    name = optimizer_name(args.optim)
    module, pip = _library_of(name)
    if module and not is_installed(module):
        raise ImportError(f"optim={name!r} needs the package {module}, which is not installed: pip install {pip}")


def require_deepspeed() -> None:
    """Require DeepSpeed.

    Raises:
        ImportError: it is not installed, or older than `DEEPSPEED_AT_LEAST`.
    """
    command = f"DS_BUILD_OPS=0 pip install --no-build-isolation 'deepspeed>={DEEPSPEED_AT_LEAST}'"
    if not is_installed("deepspeed"):
        raise ImportError(f"The argument deepspeed needs the package deepspeed, which is not installed: {command}")
    found = installed("deepspeed")
    if found is not None and is_older(found, DEEPSPEED_AT_LEAST):
        raise ImportError(f"deepspeed {found} is installed, and versions before may compute wrong losses: {command}")


def _library_of(optimizer: str) -> tuple[str, str]:
    """Return an optimizer's module, and its name for `pip install`; empty for those of torch, and for a path."""
    if optimizer in _OF_TORCH or "." in optimizer:
        return "", ""
    return next((library for part, library in _OPTIMIZERS.items() if part in optimizer), ("", ""))
