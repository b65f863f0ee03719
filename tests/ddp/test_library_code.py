"""What libraries do around a Trainer has the same results in two processes as with transformers:
fetchers set in torch, files written into checkpoints, collators of evaluations.
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


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Run the script once; return what the ranks of both libraries saw."""
    folder = tmp_path_factory.mktemp("library_code")
    script = HELPERS / "ddp" / "library_code_script.py"
    log = folder / "script.txt"
    options = {"seconds": 240, "processes": 0, "library": "transformers"}
    finished_ranks(script, str(folder), log=log, **options)
    found = {}
    for library in ("transformers", "lightrainer"):
        files = [folder / f"{library}-rank{rank}.json" for rank in (0, 1)]
        found[library] = [json.loads(file.read_text()) for file in files]
    return found


@pytest.mark.parametrize("case", [*FETCHED, *FILES, "collator"])
def test_library_code_has_the_results_of_transformers(seen, case):
    for ours, reference in zip(seen["lightrainer"], seen["transformers"], strict=True):
        assert ours[case] == reference[case]


def test_library_code_has_effects(seen):
    """The controls: fetchers, files and collator change what is compared."""
    first = seen["lightrainer"][0]
    assert first["packing"]["weights"] != first["a stream"]["weights"]
    assert first["collator"]["count"] > 0
    for case in FILES:
        last = [name for name in first[case]["files"] if name.startswith("checkpoint-4")]
        assert len(last) == 6
