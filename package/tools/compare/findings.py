"""The findings of a side, read from its records and files: calls of the Trainer, numbers,
weights, files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .runs import LIGHTRAINER, REFERENCE, CompareError, Run

if TYPE_CHECKING:
    from torch import Tensor

_TEXTS = (".json", ".jsonl", ".txt", ".csv", ".tsv")
_CLOCK_ENDINGS = (
    "_runtime",
    "_per_second",
    "_model_preparation_time",
    "_compilation_time",
    "_gib",
)
_CLOCK_PARTS = ("_mem_cpu_", "_mem_gpu_", "mfu")
# The Trainer's own state: its numbers are compared as logs.
_STATE = "trainer_state.json"


@dataclass(kw_only=True)
class Findings:
    """Results of one side."""

    run: Run
    version: str
    facts: dict[str, Any]
    """Training arguments that known differences depend on."""
    gradient_norm: float | None = None
    """Norm of the gradients of the first optimizer step before clipping; None without one, or if
    they are sharded.
    """
    logs: dict[str, Any] = field(default_factory=dict)
    """Logged numbers, by training, step and name."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Numbers that `train`, `evaluate` and `predict` returned."""
    weights: list[Path] = field(default_factory=list)
    """Files with the models after each training."""
    files: dict[str, Path] = field(default_factory=dict)
    """Files by their name in the output folder."""


def read_side(run: Run) -> Findings:
    """Read the records and the output folder of a side.

    Raises:
        CompareError: Nothing was trained or evaluated, or not with the side's own Trainer.
    """
    records = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(run.folder.glob("record-*.json"))
    ]
    calls = [call for record in records for call in record["calls"]]
    if not calls:
        raise CompareError(
            f"With the {run.side} the script ended without train, evaluate or predict of a Trainer "
            "of transformers: there is nothing to compare. Its output is in "
            f"{run.folder / 'log.txt'}."
        )
    if run.side == REFERENCE and any(record["knows_lightrainer"] for record in records):
        raise CompareError(
            "The script imports lightrainer by itself. Let it import transformers in its place."
        )
    # What the calls of the Trainer recorded.
    resumed = any(call["arguments"]["resume_from_checkpoint"] for call in calls)
    facts = {**calls[0]["arguments"], "resume_from_checkpoint": resumed}
    findings = Findings(run=run, version=_version(run.side, records), facts=facts)
    findings.gradient_norm = next(
        (call["gradient_norm"] for call in calls if "gradient_norm" in call), None
    )
    _read_calls(findings, calls)

    # The files in the output folders.
    outputs: set[str] = set()
    for record in records:
        outputs.update(record["outputs"])
    common = os.path.commonpath(outputs)
    for output in sorted(outputs):
        for path in sorted(Path(output).rglob("*")):
            if path.is_file():
                findings.files[path.relative_to(common).as_posix()] = path
    return findings


def _version(side: str, records: list[dict[str, Any]]) -> str:
    if side == LIGHTRAINER:
        from ... import __version__

        return f"lightrainer {__version__}"
    return f"transformers {records[0]['transformers']}"


def _read_calls(findings: Findings, calls: list[dict[str, Any]]) -> None:
    several = sum("log_history" in call for call in calls) > 1
    counts: dict[str, int] = {}
    for call in calls:
        name = call["call"]
        number = counts.get(name, 0) + 1
        counts[name] = number
        label = name
        if number > 1:
            label = f"{name} {number}"

        metrics = {key: value for key, value in call["metrics"].items() if not is_clock(key)}
        findings.metrics |= {f"{label}: {key}": value for key, value in metrics.items()}
        if "log_history" in call:
            findings.logs |= _logged(call["log_history"], f"training {number}, " if several else "")
            if call["weights"]:
                findings.weights.append(findings.run.folder / call["weights"])


def _logged(history: list[dict[str, Any]], prefix: str) -> dict[str, Any]:
    """Return each number by its step and name, numbered if it is logged again at a step."""
    numbers: dict[str, Any] = {}
    for entry in history:
        step = entry.get("step")
        for key, value in entry.items():
            if key == "step" or is_clock(key):
                continue

            first_name = f"{prefix}step {step}: {key}"
            name = first_name
            again = 2
            while name in numbers:
                name = f"{first_name} ({again})"
                again += 1
            numbers[name] = value
    return numbers


def is_clock(name: str) -> bool:
    """Return whether a number depends on time or memory, so that no two runs share it."""
    name = str(name)
    return name.endswith(_CLOCK_ENDINGS) or any(part in name for part in _CLOCK_PARTS)


def read_weights(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a file, recorded or saved as safetensors."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    import torch

    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def content(found: Findings, name: str) -> dict[str, Any] | None:
    """Return the content of a file by place; None for kinds of files that are not compared."""
    path = found.files[name]
    if path.name == _STATE or path.suffix not in _TEXTS:
        return None
    text = path.read_text(encoding="utf-8", errors="replace").replace(str(found.run.folder), "")
    if path.suffix == ".json":
        try:
            return {
                place: value for place, value in _places(json.loads(text)) if not is_clock(place)
            }
        except ValueError:
            pass
    return {f"line {number}": line for number, line in enumerate(text.splitlines(), 1)}


def _places(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _places(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _places(inner, f"{place}[{index}]")
    else:
        yield place, value
