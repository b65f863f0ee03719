"""Trainings in several processes, whose numbers are compared with those of one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

SECONDS = 240
"""After which a launch is taken to hang."""

NUMBERS = ("losses", "norms", "eval_losses", "last_eval_loss")


def devices(processes: int) -> list[Any]:
    """Parameters for a fixture: the CPU, and where they are as many GPUs."""
    skipped = pytest.mark.skipif(torch.cuda.device_count() < processes, reason=f"needs {processes} GPUs of NVIDIA")
    return ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, skipped])]


def close(expected: dict[str, Any], actual: dict[str, Any], tolerance: float) -> None:
    for name in NUMBERS:
        assert actual[name] == pytest.approx(expected[name], rel=tolerance), name


def same_model(expected: Path, found: Path) -> None:
    """The files hold tensors of the same names, shapes and nearly the same values."""
    left, right = (load_file(folder / "model.safetensors") for folder in (expected, found))
    assert right.keys() == left.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(right[name], tensor, rtol=5e-5, atol=5e-5)
