"""One of two processes runs out of memory, or is asked to end: both do the same then, and
nothing is lost.
"""

import json
import re
import signal

import pytest

from helpers import HELPERS
from helpers.processes.starting import finished_ranks, forked_torchrun
from lightrainer.lightning_modules.checkpoints import problems

SCRIPT = HELPERS / "ddp" / "interrupted_script.py"
SECONDS = 240  # a run takes about ten


INTERRUPTED = {-signal.SIGINT, 1}
"""Exit codes of a KeyboardInterrupt: 1 if an exit handler runs code, as one of torch's may."""
ENDED = {
    "stopped": ({128 + signal.SIGTERM}, range(4, 12)),
    "interrupted": (INTERRUPTED, range(4, 12)),
    "evaluated": (
        INTERRUPTED,
        range(3, 5),
    ),  # the other process may be through with the evaluation
}
"""How a process ends itself, and the steps at which."""


def launch(scenario, folder, **environment):
    """Run two processes under torchrun; return its exit code and their output."""
    log = folder / f"{scenario}.log"
    return forked_torchrun(SCRIPT, scenario, str(folder), log=log, seconds=SECONDS, **environment)


def seen(scenario, folder):
    return [json.loads((folder / f"{scenario}-rank{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    output = finished_ranks(
        SCRIPT, "faults", str(folder), log=folder / "faults.log", seconds=SECONDS
    )
    # by the first process: 4 -> 2 twice, and 4 -> 3 -> 2
    assert output.count("Restarting the training") == 2 + 2
    return seen("faults", folder)


@pytest.mark.parametrize(
    ("place", "same"), [("forward", "given"), ("backward", "given"), ("smaller", "small")]
)
def test_out_of_memory_on_one_rank_restarts_both(faults, place, same):
    """In its third step; the result equals a training with the smaller batch, with gradients
    averaged by DDP itself.

    By default the batch shrinks to nine tenths, repeatedly until it fits, without more
    accumulation.
    """
    for rank in faults:
        restarted, expected = rank[place], rank[same]
        assert [restarted[name] for name in ("weights", "history", "batch")] == [
            expected["weights"],
            expected["history"],
            2,
        ]
        assert place == "smaller" or restarted["passes"] == expected["passes"] + 3


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Trainings that a signal to the second process ended, how they ended, and what became of
    them.
    """
    folder = tmp_path_factory.mktemp("stopped")
    ends = {}
    for scenario in ENDED:
        code, output = launch(scenario, folder)
        # A process that torchrun has killed on its way out leaves its lock, which is free then.
        names = {path.name for path in (folder / scenario).iterdir()}
        left = sorted(names - {".training.lock"})
        # those of the workers
        codes = {int(exit_code) for exit_code in re.findall(r"exitcode  : (-?\d+)", output)}
        ends[scenario] = (code, codes, left, output, sorted(folder.glob(f"{scenario}-rank*.json")))
    finished_ranks(SCRIPT, "resumed", str(folder), log=folder / "resumed.log", seconds=SECONDS)
    return ends, seen("resumed", folder)


@pytest.mark.parametrize("scenario", ENDED)
def test_interruption_of_one_rank_stops_both_and_resumes_exactly(stopped, scenario):
    """Rank 1 gets the signal in step 4, or in the evaluation of step 3; both learn of it soon,
    and end with an error.
    """
    ends, resumed = stopped
    expected_codes, steps = ENDED[scenario]
    code, codes, left, output, finished = ends[scenario]
    assert code != 0
    # When the first process has exited, torchrun ends the other, which may still be shutting down.
    assert expected_codes & codes, output[-5000:]
    assert codes <= expected_codes | {-signal.SIGTERM}
    assert not finished
    assert len(left) == 1
    assert int(left[0].removeprefix("checkpoint-")) in steps
    for rank in resumed:
        passes = rank["whole"]["passes"] - int(left[0].removeprefix("checkpoint-"))
        assert rank[scenario] == {**rank["whole"], "passes": passes}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_torchrun_stops_with_a_checkpoint(tmp_path, number):
    """It passes the signal on to all processes, and they save before its timeout."""
    code, output = launch("endless", tmp_path, NUMBER=str(int(number)))
    assert code not in (0, None)
    left = sorted(path.name for path in (tmp_path / "endless").iterdir())
    assert len(left) == 1, (left, output[-3000:])
    assert left[0].startswith("checkpoint-")
    assert problems(tmp_path / "endless" / left[0]) == []
    assert f"{number.name}: training stops at step {left[0].removeprefix('checkpoint-')}" in output
