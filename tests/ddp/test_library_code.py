"""What libraries do around a Trainer has the same results in two processes as with transformers:
fetchers set in torch, files written into checkpoints, collators of evaluations, metrics gathered
by a loss and from loaders that user code reads.
"""

import json
import os

import pytest

from helpers import HELPERS
from helpers.processes.starting import finished_ranks

pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")

FETCHED = ("packing", "packing by a worker", "a stream", "a stream by a worker")
FILES = ("files", "files, weights only", "files, best")
GATHERED = ("", ", accumulated", ", full", ", dropped", ", stream")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Run the script once; return what the ranks of both libraries saw."""
    folder = tmp_path_factory.mktemp("library_code")
    script = HELPERS / "ddp" / "library_code_script.py"
    log = folder / "script.txt"
    options = {"seconds": 240, "processes": 0, "library": "transformers"}
    finished_ranks(script, str(folder), log=log, **options)
    results = {}
    for library in ("transformers", "lightrainer"):
        files = [folder / f"{library}-rank{rank}.json" for rank in (0, 1)]
        results[library] = [json.loads(file.read_text()) for file in files]
    return results


@pytest.mark.parametrize("case", [*FETCHED, *FILES, "collator"])
def test_library_code_has_the_results_of_transformers(seen, case):
    for ours, reference in zip(seen["lightrainer"], seen["transformers"], strict=True):
        assert ours[case] == reference[case]


@pytest.mark.parametrize("kind", GATHERED)
def test_gather_for_metrics_in_a_training_has_the_results_of_transformers(seen, kind):
    """The last round of an epoch repeats samples, which are left out.

    After a training that ends there, the reference still leaves out rows.
    """
    for ours, reference in zip(seen["lightrainer"], seen["transformers"], strict=True):
        assert ours[f"gathered{kind}"]["steps"] == reference[f"gathered{kind}"]["steps"]
        assert ours[f"gathered{kind}"]["afterwards"] == 16


def test_rows_of_loaders_that_user_code_reads_are_gathered_once(seen):
    """By a callback during a training, and by the script before and after it."""
    for ours, reference in zip(seen["lightrainer"], seen["transformers"], strict=True):
        assert [len(rows) for rows in ours["read"]] == [8, 5, *[8, 3] * 3, 8, 1]
        assert ours["read"] == reference["read"]


@pytest.mark.parametrize("joins", [True, False])
def test_labels_with_a_row_for_each_box_are_gathered(seen, joins):
    """They are lists of dicts, whose tensors have other shapes in each process."""
    for rank in seen["lightrainer"]:
        boxes = rank[f"detected, joined {joins}"]
        assert boxes == [[[index] * 2] * (1 + (3 * index) % 5) for index in range(11)]


def test_library_code_has_effects(seen):
    """The controls: fetchers, files and collator change what is compared."""
    first = seen["lightrainer"][0]
    assert first["packing"]["weights"] != first["a stream"]["weights"]
    assert first["collator"]["count"] > 0
    steps = first["gathered, accumulated"]["steps"]
    sizes = [len(step[1]) for step in steps if isinstance(step, list)]
    assert sizes[:3] == [8, 8, 2]
    for case in FILES:
        last = [name for name in first[case]["files"] if name.startswith("checkpoint-4")]
        assert len(last) == 6
