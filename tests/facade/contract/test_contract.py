"""Every training argument changes what it is documented to change; the tables list them all."""

import copy
import dataclasses

import pytest

from helpers.contract import (
    of_evaluation,
    of_execution,
    of_generation,
    of_hub,
    of_reporting,
    of_run,
    of_saving,
    of_surroundings,
)
from helpers.contract.effects import Effect, Place, surroundings
from lightrainer import Seq2SeqTrainingArguments

PARTS = (
    of_run,
    of_execution,
    of_reporting,
    of_evaluation,
    of_generation,
    of_saving,
    of_hub,
    of_surroundings,
)
TABLE: dict[str, Effect] = {name: entry for part in PARTS for name, entry in part.ENTRIES.items()}


def test_contract_has_exactly_the_arguments():
    """`tests/facade/arguments/test_arguments_parity.py` compares their names with those of the
    reference.
    """
    assert sorted(TABLE) == sorted(
        item.name for item in dataclasses.fields(Seq2SeqTrainingArguments)
    )


@pytest.mark.parametrize("name", TABLE)
def test_contract_values_differ_from_defaults(name):
    assert getattr(Seq2SeqTrainingArguments(), name) != TABLE[name].value


@pytest.mark.parametrize("name", TABLE)
def test_argument_has_its_documented_effect(name, tmp_path, monkeypatch):
    entry = TABLE[name]
    settings = surroundings(name, entry.beside)
    baseline = entry.observe(copy.deepcopy(settings), Place(tmp_path / "usual", monkeypatch))
    value = {name: copy.deepcopy(entry.value)}
    changed = entry.observe(
        copy.deepcopy(settings) | value, Place(tmp_path / "changed", monkeypatch)
    )
    assert entry.shows(baseline, changed), f"{baseline} -> {changed}"
    assert not entry.shows(baseline, baseline), f"{baseline} shows it already"
