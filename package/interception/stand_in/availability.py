"""The functions `is_..._available` of the reference, for libraries and hardware."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType

from ...lightning_modules.common.libraries import is_installed

_LIBRARIES = """
    accelerate apex av bitsandbytes bs4 cv2 datasets faiss flax librosa liger_kernel matplotlib nltk
    onnx optimum pandas peft psutil rich safetensors scipy sentencepiece sklearn soundfile tiktoken
    timm tokenizers torch torch_xla torchao torchaudio torchvision triton
"""
_CALLED_OTHERWISE = {
    "flash_attn_2": "flash_attn",
    "ipex": "intel_extension_for_pytorch",
    "jinja": "jinja2",
    "protobuf": "google.protobuf",
    "speech": "torchaudio",
    "tf": "tensorflow",
    "torchdynamo": "torch",
    "vision": "PIL",
}


def _library(module: str) -> Callable[[], bool]:
    """Return a function that tells if a library is installed, without importing it."""

    def available() -> bool:
        return is_installed(module)

    available.__doc__ = (
        f"As the function of this name in `transformers.utils`: True if {module} can be imported."
    )
    return available


for _name, _module in {**{name: name for name in _LIBRARIES.split()}, **_CALLED_OTHERWISE}.items():
    globals()[f"is_{_name}_available"] = _library(_module)


def _torch() -> ModuleType:
    import torch

    return torch


def is_torch_cuda_available() -> bool:
    """As `transformers.utils.is_torch_cuda_available`."""
    return _torch().cuda.is_available()


def is_torch_mps_available(min_version: str | None = None) -> bool:
    """As `transformers.utils.is_torch_mps_available`; every torch that lightrainer takes is new
    enough.
    """
    return _torch().backends.mps.is_available()


def is_torch_xpu_available(check_device: bool = False) -> bool:
    """As `transformers.utils.is_torch_xpu_available`."""
    return hasattr(_torch(), "xpu") and _torch().xpu.is_available()


def is_torch_npu_available(check_device: bool = False) -> bool:
    """As `transformers.utils.is_torch_npu_available`."""
    return is_installed("torch_npu") and hasattr(_torch(), "npu") and _torch().npu.is_available()


def is_torch_bf16_gpu_available() -> bool:
    """As `transformers.utils.is_torch_bf16_gpu_available`."""
    return is_torch_cuda_available() and _torch().cuda.is_bf16_supported()


def is_torch_bf16_cpu_available() -> bool:
    """As `transformers.utils.is_torch_bf16_cpu_available`: every torch that lightrainer takes
    has it.
    """
    return True


def is_torch_bf16_available() -> bool:
    """As `transformers.utils.is_torch_bf16_available`."""
    return is_torch_bf16_gpu_available() or is_torch_bf16_cpu_available()


def is_torch_tf32_available() -> bool:
    """As `transformers.utils.is_torch_tf32_available`: a GPU of NVIDIA, Ampere or newer."""
    return is_torch_cuda_available() and _torch().cuda.get_device_properties(0).major >= 8


def is_offline_mode() -> bool:
    """As `transformers.utils.is_offline_mode`: True if the environment forbids the Hub."""
    words = (
        os.environ.get(name, "").upper() for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )
    return any(word in {"1", "ON", "YES", "TRUE"} for word in words)
