"""The findings of a side: numbers, weights and files, read from its records and its folder."""

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

_TEXT_SUFFIXES = (".json", ".jsonl", ".txt", ".csv", ".tsv")
_MEASUREMENT_SUFFIXES = (
    "_runtime",
    "_per_second",
    "_model_preparation_time",
    "_compilation_time",
    "_gib",
)
_MEASUREMENT_PARTS = ("_mem_cpu_", "_mem_gpu_", "mfu")
_STATE = "trainer_state.json"
"""The Trainer's own state, whose numbers are compared as logs."""


@dataclass(kw_only=True)
class Findings:
    """The results of one side."""

    run: Run
    version: str
    """The library and its version."""
    arguments: dict[str, Any]
    """Training arguments that known differences depend on."""
    gradient_norm: float | None = None
    """Norm of the gradients of the first optimizer step, before clipping.

    None without an optimizer step, or if the model is sharded.
    """
    logs: dict[str, Any] = field(default_factory=dict)
    """Logged numbers, by training, step and name."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Numbers that `train`, `evaluate` and `predict` returned, by call and name."""
    weights: list[Path] = field(default_factory=list)
    """For each training, the file with the model after it."""
    files: dict[str, Path] = field(default_factory=dict)
    """Files by their path in the output folder."""


def read_side(run: Run) -> Findings:
    """Read the records and the output folder of a side.

    Raises:
        CompareError: nothing was trained or evaluated, or not with the Trainer of the side.
    """
    records = []
    calls = []
    for path in sorted(run.folder.glob("record-*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        records.append(record)
        calls += record["calls"]
    if not calls:
        raise CompareError(
            f"With the {run.side} the script exited without calling train, evaluate or predict of "
            "a Trainer of transformers, so there is nothing to compare. Its output is in "
            f"{run.folder / 'log.txt'}."
        )
    if run.side == REFERENCE and any(record["knows_lightrainer"] for record in records):
        raise CompareError(
            "The script imports lightrainer itself. Let it import transformers instead."
        )

    # What the calls of the Trainer recorded.
    resumes = any(call["arguments"]["resume_from_checkpoint"] for call in calls)
    arguments = {**calls[0]["arguments"], "resume_from_checkpoint": resumes}
    findings = Findings(run=run, version=_version(run.side, records), arguments=arguments)
    for call in calls:
        if "gradient_norm" in call:
            findings.gradient_norm = call["gradient_norm"]
            break
    _read_calls(findings, calls)

    # The files in the output folders.
    output_folders: set[str] = set()
    for record in records:
        output_folders.update(record["outputs"])
    common_folder = os.path.commonpath(output_folders)
    for folder in sorted(output_folders):
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                findings.files[path.relative_to(common_folder).as_posix()] = path
    return findings


def _version(side: str, records: list[dict[str, Any]]) -> str:
    """Return the library of a side with its version."""
    if side == LIGHTRAINER:
        from ... import __version__

        return f"lightrainer {__version__}"
    return f"transformers {records[0]['transformers']}"


def _read_calls(findings: Findings, calls: list[dict[str, Any]]) -> None:
    """Add the metrics, logs and weights of recorded calls."""
    trainings = sum("log_history" in call for call in calls)
    counts: dict[str, int] = {}
    for call in calls:
        name = call["call"]
        number = counts.get(name, 0) + 1
        counts[name] = number
        label = name if number == 1 else f"{name} {number}"

        for key, value in call["metrics"].items():
            if not is_measurement(key):
                findings.metrics[f"{label}: {key}"] = value

        # Only trainings have logs.
        if "log_history" in call:
            prefix = f"training {number}, " if trainings > 1 else ""
            findings.logs |= _logged_numbers(call["log_history"], prefix)
            if call["weights"]:
                findings.weights.append(findings.run.folder / call["weights"])


def _logged_numbers(history: list[dict[str, Any]], prefix: str) -> dict[str, object]:
    """Return each logged number by its step and name.

    Args:
        history: the entries of the log.
        prefix: the prefix of the names.
    """
    numbers: dict[str, Any] = {}
    for entry in history:
        step = entry.get("step")
        for key, value in entry.items():
            if key == "step" or is_measurement(key):
                continue

            # A number that is logged again at the same step gets a counter.
            first_name = f"{prefix}step {step}: {key}"
            name = first_name
            count = 2
            while name in numbers:
                name = f"{first_name} ({count})"
                count += 1
            numbers[name] = value
    return numbers


def is_measurement(name: str) -> bool:
    """Return whether a number measures time or memory, so that it differs between any two runs."""
    name = str(name)
    if name.endswith(_MEASUREMENT_SUFFIXES):
        return True
    return any(part in name for part in _MEASUREMENT_PARTS)


def read_weights(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a file, in safetensors or as the recorder writes it."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    import torch

    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def read_text_file(findings: Findings, name: str) -> dict[str, object] | None:
    """Return the values of a file by their positions, which are lines or paths in JSON.

    Args:
        findings: the side that has the file.
        name: the name of the file, in `findings.files`.

    Returns:
        None for a kind of file that is not compared.
    """
    path = findings.files[name]
    if path.name == _STATE or path.suffix not in _TEXT_SUFFIXES:
        return None

    # The folders of the two sides differ.
    text = path.read_text(encoding="utf-8", errors="replace")
    text = text.replace(str(findings.run.folder), "")

    # A file that is not valid JSON is compared line by line.
    if path.suffix == ".json":
        try:
            content = json.loads(text)
        except ValueError:
            pass
        else:
            leaves = dict(_json_leaves(content))
            return {leaf: value for leaf, value in leaves.items() if not is_measurement(leaf)}
    return {f"line {number}": line for number, line in enumerate(text.splitlines(), 1)}


def _json_leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield each value that contains no others, with its path, such as `a.b[0]`."""
    if isinstance(value, dict) and value:
        for key, child in value.items():
            child_path = f"{path}.{key}" if path else str(key)
            yield from _json_leaves(child, child_path)
    elif isinstance(value, list) and value:
        for index, child in enumerate(value):
            yield from _json_leaves(child, f"{path}[{index}]")
    else:
        yield path, value
