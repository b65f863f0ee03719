"""Two processes of any launcher are seen as two: ranks, group, Lightning's view, and their
training.
"""

import json
import os

import pytest

from helpers import HELPERS
from helpers.ddp.launched_script import ALONE, CASES, REFERENCE
from helpers.processes.starting import finished_ranks

pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")

SECONDS = 240
TOGETHER = [name for name in CASES if name not in ALONE]
# one process on each machine
APART = ("srun on two nodes", "Kubeflow", "no local rank, two machines")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("launched")
    script = HELPERS / "ddp" / "launched_script.py"
    ours = (
        "SLURM",
        "OMPI",
        "PMI",
        "MV2",
        "LSB",
        "JSM",
        "KUBERNETES",
        "MASTER",
        "RANK",
        "WORLD",
        "LOCAL_",
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(ours)]:
            patch.delenv(name)
        options = {"processes": 0, "library": "transformers"}
        finished_ranks(script, str(folder), log=folder / "script.txt", seconds=SECONDS, **options)
    return folder


@pytest.fixture
def pair(folder):
    return lambda name: [
        json.loads((folder / f"{name}-rank{rank}.json").read_text()) for rank in (0, 1)
    ]


@pytest.mark.parametrize("name", TOGETHER)
def test_launched_ranks_know_their_place(pair, name):
    """So does Lightning, which is informed and runs no launcher; so does `accelerate`."""
    local = 1 if name in APART else 2
    for rank, result in enumerate(pair(name)):
        view = result["view"]
        assert (view["world_size"], view["process_index"], view["mode"]) == (
            2,
            rank,
            "distributed",
        )
        assert (view["local_process_index"], result["local_world_size"]) == (rank % local, local)
        assert result["plan"] == [local, 2 // local]
        node = rank if name in APART else 0
        assert result["lightning"] == {
            "place": [2, rank, rank % local, node],
            "strategy": "ModelDDPStrategy",
        }
        assert result["state"] == rank or name == "own group"


@pytest.mark.parametrize("name", TOGETHER)
def test_launched_processes_train_and_predict_together(pair, name):
    first, second = pair(name)
    assert first["weights"] == second["weights"] == pair("torchrun")[0]["weights"]
    assert first["weights"] != pair("salloc")[0]["weights"], (
        "negative control: one process sees other batches"
    )
    assert first["steps"] == second["steps"] == 2
    assert first["predicted"] == second["predicted"] == 16


@pytest.mark.parametrize("name", TOGETHER)
def test_process_group_is_created_with_the_arguments_and_their_timeout(pair, name):
    """The variables of torchrun are there then, for code that reads them."""
    for rank, result in enumerate(pair(name)):
        assert result["joined"]
        assert result["timeout"] == (1800 if name == "own group" else 77)
        local = [rank % result["local_world_size"], result["local_world_size"]]
        assert name == "own group" or result["variables"][:4] == [*map(str, (rank, 2, *local))]
        assert name == "own group" or all(result["variables"][4:]), "address and port"


@pytest.mark.parametrize("name", REFERENCE)
def test_launched_processes_see_what_the_reference_sees(folder, pair, name):
    for rank, result in enumerate(pair(name)):
        assert result["view"] == json.loads(
            (folder / f"{name}, reference-rank{rank}.json").read_text()
        )


@pytest.mark.parametrize("name", ALONE)
def test_slurm_job_without_srun_trains_in_one_process(folder, pair, name):
    """Where it would wait for the others forever; and a message suggests the `srun` that may have
    been forgotten.
    """
    for result in pair(name):
        assert not result["joined"]
        assert result["view"]["world_size"] == 1
        assert result["lightning"]["strategy"] == "SingleDeviceStrategy"
    assert (folder / "said.txt").read_text().count("Put srun before the command") == 2


def test_ddp_timeout_set_too_late_warns(folder):
    """Of a group that the script has made itself, with another one."""
    output = (folder / "said.txt").read_text()
    assert output.count("ddp_timeout=77 has no effect: the process group exists already") == 2


def test_who_inherits_the_place_of_another_is_refused(pair):
    """A fork, and a program, started by a process that has joined: both would hang, and make it
    hang.
    """
    for rank, result in enumerate(pair("torchrun")):
        for message in result["refused"].values():
            assert f"has inherited its rank (RANK={rank}, WORLD_SIZE=2)" in message
            assert "Use torchrun or multiprocessing, not both" in message


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_notebooks_fork_processes(folder, pair, whose):
    """Out of a prompt that has computed with several threads; ours gives back what the function
    returns.
    """
    ranks = json.loads((folder / "notebook.json").read_text())[whose]
    for rank, result in enumerate(ranks):
        assert result["view"]["process_index"] == rank
        assert result["view"]["world_size"] == 2
        assert result["lightning"]["place"] == [2, rank, rank, 0]
        assert result["weights"] == pair("torchrun")[0]["weights"]
        assert whose == "theirs" or result["given"] == [1, "two"]
