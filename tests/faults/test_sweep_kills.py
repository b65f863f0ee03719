"""Sweeps that are killed at any moment; `sweep_kills.py` does it as often as you like."""

import pytest

from helpers.faults.killed_sweeps import kill_at_random


@pytest.mark.parametrize("name", ["study.db", "study.log"])
def test_sweep_loses_nothing_when_it_is_killed(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert kill_at_random(tmp_path, name, kills=3, seed=0) > 0
