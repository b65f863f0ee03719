"""Collectives of a step, an evaluation, a save and a start, counted in simulated worlds."""

import pytest

from benchmarks.many_processes import PHASES, counted


@pytest.fixture(scope="module")
def counts():
    return {size: counted("lightrainer", size) for size in (2, 1024)}


def test_collectives_do_not_grow_with_the_processes(counts):
    assert counts[2].keys() == set(PHASES)
    for phase in PHASES:
        assert counts[1024][phase]["calls"] == counts[2][phase]["calls"]
        assert counts[1024][phase]["bytes"] == counts[2][phase]["bytes"]


def test_collectives_of_a_step_equal_the_reference(counts):
    theirs = counted("transformers", 2)["step"]
    assert {kind: counts[2]["step"][kind] for kind in ("calls", "bytes")} == {
        k: theirs[k] for k in ("calls", "bytes")
    }
    assert theirs["calls"] == 1
