"""A window of micro-batches is one big batch, for every class of transformers whose loss is a
mean over items.
"""

import json
import os
import re
from pathlib import Path

import pytest

from helpers import HELPERS
from helpers.processes.starting import finished_ranks

pytest.importorskip("transformers", "5.3")

import transformers

import lightrainer
from helpers.promises import class_walk
from helpers.promises.class_tables import (
    CHOICE,
    CHOICE_IN_PROCESSES,
    EVEN_ONLY,
    LOOSER,
    NOT_IN_PROCESSES,
    NOT_MEANS,
    NOT_WALKED,
    is_walked,
    matches,
)

# models of transformers warn when they are imported and called
pytestmark = pytest.mark.filterwarnings("default")

TOLERANCE = 1e-5
"""Relative: other sums of the same numbers in float32."""

HEADS = (
    "CausalLM",
    "ConditionalGeneration",
    "ImageClassification",
    "MaskedLM",
    "MultipleChoice",
    "QuestionAnswering",
    "SequenceClassification",
    "TokenClassification",
)


def classes() -> list[str]:
    """Return the names of all models of transformers with a head, without importing them."""
    names = [name for name in dir(transformers) if re.search(r"For[A-Z]", name)]
    return [
        name
        for name in names
        if not name.startswith("Auto") and not name.endswith(("Config", "Processor"))
    ]


def classes_with_head(head: str) -> list[str]:
    """Return the classes that are walked and have a head; of "others" those with none of
    `HEADS`.
    """
    walked = [name for name in classes() if is_walked(name)]
    if head == "others":
        named = [name for name in walked if not name.endswith(HEADS)]
    else:
        named = [name for name in walked if name.endswith(head)]
    return [name for name in named if is_model(name)]  # imports them


def is_model(name: str) -> bool:
    kind = getattr(transformers, name)
    return isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)


def differing(found: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the classes, and of each the windows, that differ from the whole batch."""
    differing = {}
    for name, windows in found.items():
        tolerance = LOOSER.get(name, TOLERANCE)
        far = {
            window: difference
            for window, difference in windows.items()
            if not difference < tolerance
        }
        if far:
            differing[name] = far
    return differing


def walked_here(names: list[str], folder: Path) -> dict[str, dict[str, float]]:
    results = {}
    for name in names:
        results[name] = class_walk.differences(
            getattr(transformers, name), folder, with_uneven=not matches(name, EVEN_ONLY)
        )
    return results


def walked_by_two(names: list[str], folder: Path) -> dict[str, dict[str, float]]:
    """Return the differences of all classes in two processes, which are started once."""
    options = {"log": folder / "log.txt", "seconds": 3600, "library": "transformers"}
    finished_ranks(HELPERS / "promises" / "class_walk_script.py", str(folder), *names, **options)
    return json.loads((folder / "differences.json").read_text())


@pytest.mark.parametrize("name", CHOICE)
def test_window_is_one_batch(tmp_path, name):
    assert differing(walked_here([name], tmp_path)) == {}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")
def test_window_is_one_batch_in_two_processes(tmp_path):
    results = walked_by_two(list(CHOICE_IN_PROCESSES), tmp_path)
    assert list(results) == list(CHOICE_IN_PROCESSES)
    assert differing(results) == {}


class Unweighed(lightrainer.Trainer):
    """Takes each loss for one that is divided by the items of the step."""

    loss_is_scaled_for_ga = True


def test_window_of_unweighed_means_is_another_step(tmp_path, monkeypatch):
    """Control: the promise is broken on purpose, and the same comparison finds it."""
    monkeypatch.setattr(class_walk, "Trainer", Unweighed)
    results = walked_here(["BertForSequenceClassification", "LlamaForCausalLM"], tmp_path)
    assert list(differing(results)) == ["BertForSequenceClassification"]
    assert len(differing(results)["BertForSequenceClassification"]) == 4


@pytest.mark.promises
@pytest.mark.parametrize("head", [*HEADS, "others"])
def test_window_is_one_batch_for_all_classes(tmp_path, head):
    names = classes_with_head(head)
    assert len(names) > 5
    assert differing(walked_here(names, tmp_path)) == {}


@pytest.mark.promises
@pytest.mark.parametrize("head", [*HEADS, "others"])
def test_window_is_one_batch_for_all_classes_in_two_processes(tmp_path, head):
    names = [name for name in classes_with_head(head) if not matches(name, NOT_IN_PROCESSES)]
    results = walked_by_two(names, tmp_path)
    assert list(results) == names
    assert differing(results) == {}


@pytest.mark.promises
def test_walk_covers_every_class_once():
    names = [name for name in classes() if is_model(name)]
    assert len([name for name in names if is_walked(name)]) > 550
    listed = [name for group in NOT_WALKED.values() for name in group.split()]
    assert sorted(set(listed)) == sorted(listed)
    assert set(listed) <= set(names), "they exist"
    assert [name for name in listed if matches(name, NOT_MEANS)] == [], "each has one reason"
    for table in (NOT_MEANS, NOT_IN_PROCESSES, EVEN_ONLY):
        for pattern in table:
            assert any(re.fullmatch(pattern, name) for name in names), pattern


def test_classes_of_the_choice_exist():
    assert set(CHOICE_IN_PROCESSES) <= {name for name in CHOICE if is_walked(name)} == set(CHOICE)
    assert set(CHOICE) <= set(classes())
