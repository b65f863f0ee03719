"""The functions `is_..._available` of transformers, for libraries and hardware."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable
from types import ModuleType

from packaging.version import Version

from ...lightning_modules.common.libraries import is_installed

_LIBRARIES = """
    apex av bs4 cv2 datasets faiss flax librosa liger_kernel matplotlib nltk
    onnx optimum pandas peft psutil rich safetensors scipy sentencepiece sklearn soundfile tiktoken
    timm tokenizers torch torchaudio torchvision
"""
_LOWEST_VERSIONS = {
    "accelerate": "1.1.0",
    "bitsandbytes": "0.46.1",
    "torchao": "0.4.0",
    "triton": "1.0.0",
}
"""Libraries whose function accepts a minimum version, with its default."""
_MODULES_WITH_OTHER_NAMES = {
    "flash_attn_2": "flash_attn",
    "ipex": "intel_extension_for_pytorch",
    "jinja": "jinja2",
    "protobuf": "google.protobuf",
    "speech": "torchaudio",
    "tf": "tensorflow",
    "torchdynamo": "torch",
    "vision": "PIL",
}
"""The module to look for, if its name differs from that of the function."""
_TRUE_WORDS = {"1", "ON", "YES", "TRUE"}


def _checks_library(module: str) -> Callable[[], bool]:
    """Return a function that checks whether a library is installed, without importing it."""

    def is_available() -> bool:
        return is_installed(module)

    is_available.__doc__ = f"Return whether {module} can be imported."
    return is_available


def _checks_version(module: str, lowest: str) -> Callable[[str], bool]:
    """Return a function that checks whether a library is installed in a minimum version."""

    def is_available(min_version: str = lowest) -> bool:
        if not is_installed(module):
            return False
        return Version(importlib.metadata.version(module)) >= Version(min_version)

    is_available.__doc__ = (
        f"Return whether {module} is installed.\n\nArgs:\n    min_version: the lowest version that "
        "counts."
    )
    return is_available


for _name, _lowest in _LOWEST_VERSIONS.items():
    globals()[f"is_{_name}_available"] = _checks_version(_name, _lowest)
for _name in _LIBRARIES.split():
    globals()[f"is_{_name}_available"] = _checks_library(_name)
for _name, _module in _MODULES_WITH_OTHER_NAMES.items():
    globals()[f"is_{_name}_available"] = _checks_library(_module)


def _torch() -> ModuleType:
    """Import torch on use, because a script may ask only for other libraries."""
    import torch

    return torch


def is_torch_cuda_available() -> bool:
    """Return whether torch can compute on a CUDA device."""
    return _torch().cuda.is_available()


def is_torch_mps_available(min_version: str | None = None) -> bool:
    """Return whether torch can compute on an Apple GPU.

    Args:
        min_version: ignored, because every supported torch is new enough.
    """
    return _torch().backends.mps.is_available()


def is_torch_xpu_available(check_device: bool = False) -> bool:
    """Return whether torch can compute on an Intel GPU.

    Args:
        check_device: ignored; a device that torch finds counts.
    """
    return _torch().xpu.is_available()


def is_torch_npu_available(check_device: bool = False) -> bool:
    """Return whether torch can compute on an Ascend NPU.

    Args:
        check_device: ignored; a device that torch finds counts.
    """
    if not is_installed("torch_npu"):
        return False
    # `torch.npu` exists only after `torch_npu` has been imported.
    npu = getattr(_torch(), "npu", None)
    return npu is not None and npu.is_available()


def is_torch_xla_available(check_is_tpu: bool = False, check_is_gpu: bool = False) -> bool:
    """Return whether torch_xla is installed.

    Args:
        check_is_tpu: True to require that its device is a TPU, too.
        check_is_gpu: True to require that its device is a GPU, too.
    """
    if not is_installed("torch_xla"):
        return False
    if not (check_is_tpu or check_is_gpu):
        return True
    import torch_xla

    device = torch_xla.runtime.device_type()
    return device == "TPU" if check_is_tpu else device in ("GPU", "CUDA")


def is_torch_bf16_gpu_available() -> bool:
    """Return whether the GPU supports bfloat16."""
    return is_torch_cuda_available() and _torch().cuda.is_bf16_supported()


def is_offline_mode() -> bool:
    """Return whether the environment forbids access to the Hub."""
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(variable, "").upper() in _TRUE_WORDS:
            return True
    return False


NAMES = [_name for _name in globals() if _name.startswith("is_") and _name != "is_installed"]
"""The names of all these functions."""
