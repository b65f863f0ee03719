"""`is_..._available` of the reference: whether a library or a kind of hardware is there."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType

from ...callbacks.progress_notebook import is_in_notebook as is_in_notebook
from ...lightning_modules.common.libraries import is_installed


def _library(name: str) -> Callable[[], bool]:
    """A function that says whether a library is installed, without importing it."""

    @functools.lru_cache(None)
    def available() -> bool:
        return is_installed(name)

    available.__doc__ = f"Whether {name} can be imported, as the function of this name in `transformers.utils`."
    return available


def _torch() -> ModuleType:
    import torch

    return torch


is_accelerate_available = _library("accelerate")
is_apex_available = _library("apex")
is_av_available = _library("av")
is_bitsandbytes_available = _library("bitsandbytes")
is_bs4_available = _library("bs4")
is_cv2_available = _library("cv2")
is_datasets_available = _library("datasets")
is_faiss_available = _library("faiss")
is_flash_attn_2_available = _library("flash_attn")
is_flax_available = _library("flax")
is_ipex_available = _library("intel_extension_for_pytorch")
is_jinja_available = _library("jinja2")
is_librosa_available = _library("librosa")
is_liger_kernel_available = _library("liger_kernel")
is_matplotlib_available = _library("matplotlib")
is_nltk_available = _library("nltk")
is_onnx_available = _library("onnx")
is_optimum_available = _library("optimum")
is_pandas_available = _library("pandas")
is_peft_available = _library("peft")
is_protobuf_available = _library("google.protobuf")
is_psutil_available = _library("psutil")
is_rich_available = _library("rich")
is_safetensors_available = _library("safetensors")
is_scipy_available = _library("scipy")
is_sentencepiece_available = _library("sentencepiece")
is_sklearn_available = _library("sklearn")
is_soundfile_available = _library("soundfile")
is_speech_available = _library("torchaudio")
is_tf_available = _library("tensorflow")
is_tiktoken_available = _library("tiktoken")
is_timm_available = _library("timm")
is_tokenizers_available = _library("tokenizers")
is_torch_available = _library("torch")
is_torch_xla_available = _library("torch_xla")
is_torchao_available = _library("torchao")
is_torchaudio_available = _library("torchaudio")
is_torchdynamo_available = _library("torch")
is_torchvision_available = _library("torchvision")
is_triton_available = _library("triton")
is_vision_available = _library("PIL")


def is_torch_cuda_available() -> bool:
    """As `transformers.utils.is_torch_cuda_available`."""
    return _torch().cuda.is_available()


def is_torch_mps_available(min_version: str | None = None) -> bool:
    """As `transformers.utils.is_torch_mps_available`; every torch that lightrainer takes is new enough."""
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
    """As `transformers.utils.is_torch_bf16_cpu_available`: every torch that lightrainer takes has it."""
    return True


def is_torch_bf16_available() -> bool:
    """As `transformers.utils.is_torch_bf16_available`."""
    return is_torch_bf16_gpu_available() or is_torch_bf16_cpu_available()


def is_torch_fp16_available_on_device(device: str) -> bool:
    """As `transformers.utils.is_torch_fp16_available_on_device`: whether it multiplies matrices of that type."""
    return _multiplies(device, "float16")


def is_torch_bf16_available_on_device(device: str) -> bool:
    """As `transformers.utils.is_torch_bf16_available_on_device`: whether it multiplies matrices of that type."""
    return _multiplies(device, "bfloat16")


def _multiplies(device: str, dtype: str) -> bool:
    try:
        matrix = _torch().zeros(2, 2, dtype=getattr(_torch(), dtype)).to(device)
        return bool((matrix @ matrix).isfinite().all())
    except Exception:
        return False


def is_torch_tf32_available() -> bool:
    """As `transformers.utils.is_torch_tf32_available`: a GPU of NVIDIA, Ampere or newer."""
    return is_torch_cuda_available() and _torch().cuda.get_device_properties(0).major >= 8


def is_training_run_on_sagemaker() -> bool:
    """As `transformers.utils.is_training_run_on_sagemaker`."""
    return "SAGEMAKER_JOB_NAME" in os.environ


def is_sagemaker_dp_enabled() -> bool:
    """As `transformers.utils.is_sagemaker_dp_enabled`: False, it is not supported."""
    return False


def is_sagemaker_mp_enabled() -> bool:
    """As `transformers.utils.is_sagemaker_mp_enabled`: False, it is not supported."""
    return False


def is_offline_mode() -> bool:
    """As `transformers.utils.is_offline_mode`: whether the environment forbids the Hub."""
    words = (os.environ.get(name, "").upper() for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(word in {"1", "ON", "YES", "TRUE"} for word in words)


def requires_backends(obj: object, backends: str | list[str]) -> None:
    """As `transformers.utils.requires_backends`.

    Raises:
        ImportError: One of them is not installed.
    """
    names = [backends] if isinstance(backends, str) else list(backends)
    missing = [name for name in names if not is_installed({"vision": "PIL"}.get(name, name))]
    if missing:
        who = getattr(obj, "__name__", type(obj).__name__)
        raise ImportError(f"{who} needs what is not installed: pip install {' '.join(missing)}")
