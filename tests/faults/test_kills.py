"""A training that is killed again and again ends as one that never was. Real signals, real
processes.
"""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import pytest

from helpers.checkpoints.resumed_trainings import KINDS
from helpers.faults.killed_trainings import CASES, Case
from helpers.faults.launching import report_of

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the trainings are forked"),
    # torchdata 0.11 with torch 2.13.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]
LEAST = {1: 30, 2: 8}
"""Kills, by the number of processes, that there are at the least."""


def reports(folder: Path, processes: int, soak: int) -> Iterator[dict]:
    """One after the other until there were as many kills as a soak asks for; the first is always
    the same.
    """
    kills, share = 0, soak * list(NAMES.values()).count(processes) // len(CASES)
    for seed in count(0, len(CASES)):
        options = ["--processes", processes, "--seed", seed, "--kills", 12 if seed else 3]
        report = report_of("kill_trainings_script.py", folder / str(seed), *options)
        kills += sum(len(case["kills"]) for case in report.values())
        yield report
        if kills >= share:
            return


NAMES = {
    name: case.processes
    for name, case in CASES.items()
    if not (needs := KINDS[case.reads].needs) or find_spec(needs)
}


@pytest.fixture(scope="module")
def all_reports(request, tmp_path_factory):
    """`all_reports(processes)`, computed once."""
    cache: dict[int, list[dict]] = {}

    def get(processes: int) -> list[dict]:
        if processes not in cache:
            folder = tmp_path_factory.mktemp(f"in{processes}")
            cache[processes] = list(reports(folder, processes, request.config.getoption("--soak")))
        return cache[processes]

    return get


@pytest.mark.parametrize("name", NAMES)
def test_killed_training_ends_the_same(all_reports, name):
    """Weights, logs and best model, bit for bit; nothing damaged after any kill, and nothing
    left over at the end.
    """
    case: Case = CASES[name]
    for report in all_reports(case.processes):
        result = report[name]
        assert result["failed"] is None
        assert [kill for kill in result["kills"] if kill["damaged"]] == []
        has_complete = [kill["complete"] > 0 for kill in result["kills"]]
        assert has_complete == sorted(has_complete), (
            "rotation took the last one away before the next was complete"
        )
        assert result["other"] == []
        assert [left for left in result["left"] if left.startswith(".")] == []
        if case.limit is not None:
            assert set(result["left by the whole"]) <= set(result["left"])
            assert len(result["left"]) <= len(result["left by the whole"]) + 1
        elif case.number == 9:
            assert result["left"] == result["left by the whole"]


@pytest.mark.parametrize("processes", LEAST)
def test_killed_training_was_killed_often_and_everywhere(all_reports, processes):
    """Control: in the middle of saves too, and trainings did resume from many steps."""
    report = all_reports(processes)[0]
    kills = [kill for case in report.values() for kill in case["kills"]]
    assert len(kills) >= LEAST[processes]
    assert all(any(kill["codes"]) for kill in kills)
    assert sum(kill["hidden"] for kill in kills) >= len(kills) / 8
    assert len({begin for case in report.values() for begin in case["begins"]}) >= 4
    moments = {kill["moment"].partition("'")[2].partition("'")[0] for kill in kills}
    assert moments >= (
        {"change", "pass", "byte", "second", "sample"} if processes == 1 else {"pass", "second"}
    )
