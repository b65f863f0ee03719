"""Runs the training script in two processes, once for each library and scenario."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from helpers import HELPERS
from helpers.processes.starting import finished_ranks, forked_torchrun

SCRIPT = HELPERS / "ddp" / "train_script.py"
# by scenario
GENERATING = ("seq2seq", "seq2seq_fsdp1", "seq2seq_fsdp2")
OTHER_SCRIPTS = dict.fromkeys(GENERATING, SCRIPT.with_name("seq2seq_script.py"))
OTHER_SCRIPTS["batch_sharding"] = SCRIPT.with_name("batch_sharding_script.py")
OTHER_SCRIPTS["modules"] = SCRIPT.with_name("module_script.py")
OTHER_SCRIPTS["estimates"] = SCRIPT.with_name("estimate_script.py")
OF_TRANSFORMERS = (*GENERATING, "estimates")
"""Scenarios that import it whichever library trains."""
PROCESSES = {"evaluation3": 3}  # two in all other scenarios
OTHER_SCRIPTS |= dict.fromkeys(
    ("evaluation2", *PROCESSES), SCRIPT.with_name("evaluation_script.py")
)
TOGETHER = {
    "lightrainer": ("tokens", "half", "half_compiled"),
    "transformers": ("points", "tokens", "half"),
}
"""Scenarios of the training script that share a program."""
SECONDS = 240  # a run takes ten to forty; one rank that waits for the other for ever is caught here


@dataclass(frozen=True)
class TwoRanks:
    """The output of the ranks of one run, two nearly always, and its folder."""

    folder: Path
    ranks: list[dict[str, Any]]


def train(library: str, scenario: str, folder: Path) -> None:
    """Start processes with gloo between them; fail with their output, also when they hang."""
    script = OTHER_SCRIPTS.get(scenario, SCRIPT)
    options = {
        "log": folder / f"{scenario}.log",
        "seconds": SECONDS,
        "processes": PROCESSES.get(scenario, 2),
    }
    if scenario != "modules":
        # `lightning.seed_everything` leaves this, and seeds no training but those of Lightning
        # alone.
        options["PL_GLOBAL_SEED"] = "5"
    scenarios = TOGETHER.get(library, ())
    words = (library, ",".join(scenarios) if scenario in scenarios else scenario, str(folder))
    # one of them is started by torch's own launcher
    if (library, scenario) == ("lightrainer", "points"):
        code, output = forked_torchrun(script, *words, **options)
        assert code == 0, output[-8000:]
    else:
        imported = "transformers" if scenario in OF_TRANSFORMERS else library
        finished_ranks(script, *words, library=imported, **options)


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], TwoRanks]:
    """`two_ranks(library, scenario)`; each run is made once and shared by the tests."""
    make_folder = functools.cache(tmp_path_factory.mktemp)

    def get(library: str, scenario: str) -> TwoRanks:
        folder = make_folder(library)
        files = [
            folder / f"{scenario}-rank{rank}.json" for rank in range(PROCESSES.get(scenario, 2))
        ]
        if not files[0].is_file():  # or it was written by a program of several scenarios
            train(library, scenario, folder)
        return TwoRanks(folder, [json.loads(file.read_text()) for file in files])

    return get
