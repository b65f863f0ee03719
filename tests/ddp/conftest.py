"""Runs the training script in two processes, once for each library and scenario."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starting import finished_ranks, forked_torchrun

SCRIPT = Path(__file__).with_name("train_script.py")
OTHER_SCRIPTS = dict.fromkeys(("seq2seq", "seq2seq_sharded"), SCRIPT.with_name("seq2seq_script.py"))  # by scenario
OTHER_SCRIPTS["batch_sharding"] = SCRIPT.with_name("batch_sharding_script.py")
OTHER_SCRIPTS["modules"] = SCRIPT.with_name("module_script.py")
OTHER_SCRIPTS["estimates"] = SCRIPT.with_name("estimate_script.py")
PROCESSES = {"evaluation3": 3}  # two in all other scenarios
OTHER_SCRIPTS |= dict.fromkeys(("evaluation2", *PROCESSES), SCRIPT.with_name("evaluation_script.py"))
TOGETHER = {"lightrainer": ("tokens", "half", "half_compiled"), "transformers": ("points", "tokens", "half")}
"""Scenarios of the training script that share a program."""
SECONDS = 240  # a run takes ten to forty; one rank that waits for the other for ever is caught here


@dataclass(frozen=True)
class TwoRanks:
    """The output of the ranks of one run, two nearly always, and its folder."""

    folder: Path
    ranks: list[dict[str, Any]]


def train(library: str, scenario: str, folder: Path) -> TwoRanks:
    """Start two processes with gloo between them; fail with their output, also when they hang."""
    processes = PROCESSES.get(scenario, 2)
    script = OTHER_SCRIPTS.get(scenario, SCRIPT)
    # `lightning.seed_everything` leaves this, and no training is to be seeded by it; but for those of Lightning alone.
    seeded = {} if scenario == "modules" else {"PL_GLOBAL_SEED": "5"}
    together = TOGETHER.get(library, ()) if script == SCRIPT else ()
    scenarios = ",".join(together) if scenario in together else scenario
    words, log = (library, scenarios, str(folder)), folder / f"{scenario}.log"
    if (library, scenario) == ("lightrainer", "points"):  # one of them is started by torch's own launcher
        code, said = forked_torchrun(script, *words, log=log, seconds=SECONDS, processes=processes, **seeded)
        assert code == 0, said[-8000:]
    else:
        finished_ranks(script, *words, log=log, seconds=SECONDS, processes=processes, library=library, **seeded)
    return read(folder, scenario, processes)


def read(folder: Path, scenario: str, processes: int) -> TwoRanks:
    """Return what the ranks of a scenario wrote."""
    ranks = [json.loads((folder / f"{scenario}-rank{rank}.json").read_text()) for rank in range(processes)]
    return TwoRanks(folder, ranks)


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], TwoRanks]:
    """`two_ranks(library, scenario)`; each run is made once and shared by the tests."""
    folders: dict[str, Path] = {}
    runs: dict[tuple[str, str], TwoRanks] = {}

    def get(library: str, scenario: str) -> TwoRanks:
        if library not in folders:
            folders[library] = tmp_path_factory.mktemp(library)
        if (library, scenario) not in runs:
            folder = folders[library]
            if (folder / f"{scenario}-rank0.json").is_file():  # by a program of several scenarios
                runs[library, scenario] = read(folder, scenario, PROCESSES.get(scenario, 2))
            else:
                runs[library, scenario] = train(library, scenario, folder)
        return runs[library, scenario]

    return get
