"""Trainings in several processes, whose numbers are compared with those of one."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from helpers.processes.starting import finished_ranks

SECONDS = 240
"""After which a launch is taken to hang."""

NUMBERS = ("losses", "norms", "eval_losses", "last_eval_loss")


def devices(processes: int) -> list[Any]:
    """Return parameters for a fixture: the CPU, and GPUs; a pretended one serves a single
    process.
    """
    too_few = pytest.mark.skipif(
        torch.cuda.device_count() < processes > 1,
        reason=f"NCCL needs a GPU for each of {processes} processes",
    )
    return ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, too_few])]


def launched(
    script: Path, folder: Path, device: str, alone: list[str], *groups: tuple[int, list[str]]
) -> Callable[..., dict[str, Any]]:
    """Run a script of `short_runs.train_cases` once alone and once for each number of processes,
    with its cases.

    Returns:
        `results(case, rank)`, which reads what a rank saw, or the process alone by "single"; its
        `folder`.
    """
    is_installed = importlib.util.find_spec("transformers") is not None
    of_transformers = ("llama", "qwen")
    common = {"log": folder / "log.txt", "seconds": SECONDS, "DEVICE": device}
    common["library"] = "transformers" if is_installed else "lightrainer"
    for processes, cases in ((0, alone), *groups):
        usable = [case for case in cases if is_installed or not case.endswith(of_transformers)]
        finished_ranks(script, str(folder), *usable, processes=processes, **common)

    def results(case: str, rank: Any = 0) -> dict[str, Any]:
        if case.endswith(of_transformers) and not is_installed:
            pytest.skip("needs transformers")
        return json.loads(
            (folder / f"{case}-{rank if rank == 'single' else f'rank{rank}'}.json").read_text()
        )

    results.folder = folder
    return results


def goes_on(straight: dict[str, Any], names: tuple[str, ...]) -> None:
    """A training that was cut and resumed has seen the same."""
    for name in names:
        assert straight["resumed"][name] == straight[name], name


def same_optimizer(expected: Path, found: Path) -> None:
    """The files hold states of the same parameters, by the same numbers, and nearly the same
    values.
    """
    left, right = (torch.load(path, weights_only=True) for path in (expected, found))
    assert right["state"].keys() == left["state"].keys()
    assert [group["params"] for group in right["param_groups"]] == [
        group["params"] for group in left["param_groups"]
    ]
    for index, values in left["state"].items():
        assert float(right["state"][index]["step"]) == float(values["step"]) > 0
        for key in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(
                right["state"][index][key].cpu(), values[key].cpu(), rtol=1e-4, atol=1e-5
            )


def close(
    expected: dict[str, Any],
    actual: dict[str, Any],
    tolerance: float,
    names: tuple[str, ...] = NUMBERS,
) -> None:
    for name in names:
        assert actual[name] == pytest.approx(expected[name], rel=tolerance), name


def same_model(expected: Path, found: Path, near: float = 5e-5) -> None:
    """The files hold tensors of the same names, shapes and nearly the same values."""
    left, right = (load_file(folder / "model.safetensors") for folder in (expected, found))
    assert right.keys() == left.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(right[name], tensor, rtol=near, atol=near)
