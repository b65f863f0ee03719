"""Read the results of a side (numbers, weights and files) from its records and its folder."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .runs import LIGHTRAINER, REFERENCE, CompareError, Run

if TYPE_CHECKING:
    from torch import Tensor

_TEXT_SUFFIXES = (".jsonl", ".txt", ".csv", ".tsv")
_NUMBERS_NOT_COMPARED = (
    "*_runtime",
    "*_per_second",
    "*_model_preparation_time",
    "*_compilation_time",
    "*_gib",
    "*_mem_[cg]pu_*",
    "*mfu*",
    "*_token_id",
)
"""Patterns for the names of numbers that are not compared.

Times and memory differ between any two runs. Of the ids of special tokens, transformers before 5.23
removes some from the configuration of a model.
"""
_FILES_NOT_COMPARED = (
    "_manifest.json",
    "data_state_*.pth",
    "scaler.pt",
    "events.out.tfevents.*",
    "README.md",
    "loss_curve.svg",
)
"""Patterns of files that are not compared: those that only lightrainer writes, model cards, and
files with a time in their name.
"""
_STATE = "trainer_state.json"
"""The state of the Trainer. The file is not compared, because its numbers are compared as logs."""


@dataclass(kw_only=True)
class Results:
    """The results of one side."""

    run: Run
    version: str
    """The library and its version."""
    logs: dict[str, Any] = field(default_factory=dict)
    """Logged numbers, by training, step and name."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Numbers that `train`, `evaluate` and `predict` returned, by call and name."""
    weights: dict[str, Path] = field(default_factory=dict)
    """The file with the model's weights after each training, by training."""
    files: dict[str, Path] = field(default_factory=dict)
    """Files by their path in the output folder."""


def read_results(run: Run) -> Results:
    """Read the records and the output folders of a side.

    Raises:
        CompareError: the script trained or evaluated nothing, or not with the side's Trainer.
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

    results = Results(run=run, version=_version(run.side, records))
    _read_calls(results, calls)
    output_folders: set[str] = set()
    for record in records:
        output_folders.update(record["outputs"])
    _find_files(results, output_folders)
    return results


def _version(side: str, records: list[dict[str, Any]]) -> str:
    """Return the name and the version of a side's library."""
    if side == LIGHTRAINER:
        from ... import __version__

        return f"lightrainer {__version__}"
    return f"transformers {records[0]['transformers']}"


def _read_calls(results: Results, calls: list[dict[str, Any]]) -> None:
    """Add the metrics, logs and weights of recorded calls."""
    counts: Counter[str] = Counter()
    for call in calls:
        name = call["call"]
        counts[name] += 1
        label = name if counts[name] == 1 else f"{name} {counts[name]}"

        for key, value in call["metrics"].items():
            if _is_compared(key):
                results.metrics[f"{label}: {key}"] = value

        if name == "train":
            results.logs |= _logged_numbers(call["log_history"], label)
        if call.get("weights"):
            results.weights[label] = results.run.folder / call["weights"]


def _logged_numbers(history: list[dict[str, Any]], label: str) -> dict[str, object]:
    """Return each logged number by the label of the training, the step and the name."""
    numbers: dict[str, object] = {}
    counts: Counter[str] = Counter()
    for entry in history:
        step = entry.get("step")
        for key, value in entry.items():
            if key == "step" or not _is_compared(key):
                continue

            # A number that is logged again at the same step gets a counter.
            name = f"{label}, step {step}: {key}"
            counts[name] += 1
            if counts[name] > 1:
                name = f"{name} ({counts[name]})"
            numbers[name] = value
    return numbers


def _is_compared(name: str) -> bool:
    return not any(fnmatch(name, pattern) for pattern in _NUMBERS_NOT_COMPARED)


def _find_files(results: Results, output_folders: set[str]) -> None:
    """Add the files to compare in the output folders."""
    common_folder = os.path.commonpath(output_folders)
    for folder in sorted(output_folders):
        for path in sorted(Path(folder).rglob("*")):
            is_excluded = any(fnmatch(path.name, pattern) for pattern in _FILES_NOT_COMPARED)
            if path.is_file() and not is_excluded:
                results.files[path.relative_to(common_folder).as_posix()] = path


def read_weights(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a safetensors file, or of a file that the recorder has written."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    import torch

    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def read_content(results: Results, name: str) -> Mapping[str, object] | None:
    """Return the values in a file by name; None for a kind of file that is not compared.

    The name of a value in JSON is its path, such as `a.b.0`. Any other text is a single value named
    `text`.

    Args:
        results: the results of the side with the file.
        name: the name of the file, in `results.files`.
    """
    path = results.files[name]
    if path.suffix == ".safetensors":
        return read_weights(path)
    if path.name == _STATE or path.suffix not in (".json", *_TEXT_SUFFIXES):
        return None

    # A file may contain the path of its folder, which differs between the sides.
    text = path.read_text(encoding="utf-8", errors="replace")
    text = text.replace(str(results.run.folder), "")
    if path.suffix == ".json":
        try:
            return dict(_json_values(json.loads(text)))
        except ValueError:
            # Invalid JSON is compared as text.
            pass
    return {"text": text}


def _json_values(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield each leaf of a JSON value with its path, such as `a.b.0`."""
    if isinstance(value, list) and value:
        value = dict(enumerate(value))
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from _json_values(child, f"{path}.{key}".lstrip("."))
    elif _is_compared(path):
        yield path, value
