"""Several machines train together: network namespaces with an agent of torchrun in each, or
loopback addresses.

`make test-nodes` runs all of it, both ways; among the other tests a part runs, in the way that is
allowed.
"""

import json
import os
import re
from pathlib import Path

import pytest

from helpers import HELPERS
from helpers.nodes.machines import why_not_isolated
from helpers.processes.beside_one_process import close
from helpers.processes.starting import finished_ranks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the machines are forked")

SECONDS = 400
PARAMETERS = 264  # of the model that is sharded
ALWAYS = ["strategies", "elastic", "each", "first", "killed", "agent"]
ON_REQUEST = ["three", "parts", "cut", "back", "each, reference", "first, reference"]
ISOLATED = ["cut"]
"""Scenarios that need their own network."""


def ways():
    """By way the scenarios that run, and the mark without which they do not."""
    allowed = not why_not_isolated()
    default, other = ("isolated", "loopback") if allowed else ("loopback", "isolated")
    skipped = pytest.mark.skipif(not allowed, reason=why_not_isolated())
    for name in [*ALWAYS, *ON_REQUEST]:
        marks = [] if name in ALWAYS else [pytest.mark.nodes]
        yield pytest.param(
            (default, name),
            marks=[*marks, *([skipped] if name in ISOLATED else [])],
            id=f"{name}, {default}",
        )
        if name not in ISOLATED:
            marks = [] if name == "agent" and allowed else [pytest.mark.nodes]
            yield pytest.param(
                (other, name),
                marks=[*marks, *([] if allowed else [skipped])],
                id=f"{name}, {other}",
            )


def of(*names):
    return pytest.mark.parametrize(
        "report", [scenario for scenario in ways() if scenario.values[0][1] in names], indirect=True
    )


@pytest.fixture(scope="module")
def all_reports(request, tmp_path_factory):
    """`all_reports(way)`: of the scenarios that the tests of this session ask for, made
    together.
    """
    requested, reports = {}, {}
    for item in request.session.items:
        callspec = getattr(item, "callspec", None)
        if (
            callspec is not None
            and item.path == Path(__file__)
            and not item.get_closest_marker("skip")
        ):
            way, name = callspec.params["report"]
            requested.setdefault(way, {})[name] = None

    def get(way):
        if way not in reports:
            folder = tmp_path_factory.mktemp(way)
            options = {
                "log": folder / "log.txt",
                "seconds": SECONDS,
                "processes": 0,
            }
            output = finished_ranks(
                HELPERS / "nodes" / "node_scenarios_script.py",
                str(folder),
                way,
                *requested[way],
                **options,
            )
            reports[way] = json.loads(output.splitlines()[-1])
        return reports[way]

    return get


@pytest.fixture
def report(all_reports, request):
    way, name = request.param
    if way == "isolated" and why_not_isolated():
        pytest.skip(why_not_isolated())
    result = all_reports(way)[name]
    assert "failed" not in result, result["failed"]
    return result


@of("strategies")
def test_nodes_equal_one_process(report):
    """DDP, FSDP 2 within each machine and over both, with checkpoints in parts on a disk that
    both see.
    """
    for strategy in ("ddp", "fsdp2_hybrid", "fsdp2_parts"):
        for rank in report[strategy]:
            close(report["single"], rank, 1e-5)
    assert len(set(report["single"]["losses"])) == 6
    local_sizes = {
        name: [rank["local_numel"] for rank in report[name]]
        for name in ("ddp", "fsdp2_hybrid", "fsdp2_parts")
    }
    assert local_sizes["ddp"] == [PARAMETERS] * 4
    assert (
        sum(local_sizes["fsdp2_hybrid"][:2]) == sum(local_sizes["fsdp2_hybrid"][2:]) == PARAMETERS
    ), "a copy on each machine"
    assert sum(local_sizes["fsdp2_parts"]) == PARAMETERS
    for rank in report["fsdp2_parts"]:
        close(rank, rank["resumed"], 1e-6)


def saved(*ranks):
    once = [
        "_manifest.json",
        "model.safetensors",
        "optimizer.pt",
        "scheduler.pt",
        "trainer_state.json",
    ]
    each = [f"{kind}_state_{number}.pth" for kind in ("data", "rng") for number in ranks]
    names = [*once, "training_args.bin", *each]
    return sorted(f"out/checkpoint-{step}/{name}" for step in (2, 4, 6) for name in names)


@of("each")
def test_nodes_with_separate_disks_have_whole_checkpoints_and_a_log(report):
    """On disks that the others do not see; both resume from them together, to the same bits, and
    each alone.
    """
    assert report["files"] == [saved(0, 1), saved(2, 3)]
    ranks = report["ranks"]
    assert [rank["place"] for rank in ranks] == [
        [n, n % 2, n % 2 == 0, n % 2 == 0] for n in range(4)
    ]
    assert [rank["levels"][0] for rank in ranks] == [20, 30, 20, 30]
    whole = ranks[0]["losses"]
    assert len(whole) == 6
    for name, processes in {"both": 4, "1": 2}.items():
        resumed = report["resumed"][name]
        assert resumed["codes"] == [0] * (processes // 2), report["output"]
        for rank in resumed["ranks"]:
            assert (rank["step"], rank["size"]) == (6, processes)
            assert (
                rank["losses"] == whole
                if name == "both"
                else rank["losses"] == pytest.approx(whole, rel=1e-5)
            )


@of("first")
def test_nodes_save_whole_checkpoints_on_the_first(report):
    """With the states of all processes. The other one cannot resume, and both report where
    the checkpoints are.
    """
    assert report["files"] == [saved(0, 1, 2, 3), []]
    assert [rank["place"][2:] for rank in report["ranks"]] == [[n == 0, n == 0] for n in range(4)]
    assert report["resumed"]["both"]["codes"] == [1, 1]
    for output in report["output"]:
        matches = re.findall(
            r"checkpoint is checkpoint-4 on (\S+), and (\S+) has no checkpoint\. ", output
        )
        assert matches
        assert matches[0] in (("node0", "node1"), matches[0][:1] * 2)


@of("each", "first")
def test_nodes_wait_for_the_first_process(report):
    for rank in report["ranks"]:
        node, local = rank["node"], rank["place"][1]
        assert local == 0 or f"disks-True-{node}-0" in rank["turns"]["True"]
        assert (node, local) == (0, 0) or "disks-False-0-0" in rank["turns"]["False"]
    assert report["ranks"][0]["turns"]["False"] == []


@of("three")
def test_three_machines_train_together(report):
    assert [rank["place"][:2] for rank in report["ranks"]] == [[0, 0], [1, 0], [2, 0]]
    assert all(rank["weights"] == report["ranks"][0]["weights"] for rank in report["ranks"])


@of("parts")
def test_sharded_checkpoint_on_separate_disks_is_refused(report):
    """By the machine that does not see the folder; the other one names it, and nothing is left
    behind.
    """
    assert report["codes"] == [1, 1]
    assert re.search(r"\S+ does not see \S+/checkpoint-2; a checkpoint cannot", report["output"][1])
    assert re.search(
        r"OtherProcessError: Process 1 \(pid \d+ on \S+\) failed: ValueError", report["output"][0]
    )
    assert report["files"] == [[], []]


@of("killed", "cut")
def test_node_that_is_lost_ends_the_others(report, request):
    """It is switched off, or its plug is pulled, which gloo notices by its timeout."""
    first, second = report["codes"]
    assert first == 1
    assert second
    noticed = r"Connection (closed|reset) by peer|Broken pipe"
    if request.node.callspec.id.startswith("cut"):
        noticed = r"Timed out waiting 5000ms"
    assert re.search(noticed, report["output"][0]), report["output"][0][-3000:]


@of("agent")
def test_processes_whose_launcher_is_killed_train_to_the_end(report):
    assert [rank["step"] for rank in report["ranks"]] == [12, 12]


@of("back", "elastic")
def test_node_that_comes_back_leaves_the_training_exact(report, request):
    """The other one waits for it, or trains alone until it comes: the samples of each step stay
    the same.
    """
    elastic = request.node.callspec.id.startswith("elastic")
    began = [[line for line in node if line != "0 of 1"] for node in report["began"]]
    if elastic:
        (step, world_size), *_ = [line.split(" of ") for line in began[1][1:]]
        assert began[0][:2] == ["0 of 2", "2 of 1"]
        assert began[0][-1] == began[1][-1] == f"{step} of {world_size}" == "5 of 2"
    else:
        assert began == [["0 of 2", "2 of 2"]] * 2
    for whole, rank in zip(report["whole"], report["ranks"], strict=True):
        assert rank["step"] == whole["step"] == 12
        assert rank["losses"] == pytest.approx(whole["losses"], rel=1e-5 if elastic else 0, abs=0)
        assert elastic or rank["weights"] == whole["weights"]


@of("each, reference", "first, reference")
def test_nodes_do_what_the_reference_does(report, request, all_reports):
    """Compare which process saves and logs, its level, and the files of each machine.

    Without `save_on_each_node` the first machine has the generators of all ranks here; the
    reference leaves those of another machine there.
    """
    way, name = request.node.callspec.params["report"]
    ours = all_reports(way)[name.partition(",")[0]]
    for left, right in zip(ours["ranks"], report["ranks"], strict=True):
        assert [left[key] for key in ("place", "levels", "logs", "losses")] == [
            right[key] for key in ("place", "levels", "logs", "losses")
        ]
    left_out = ("_manifest.json", "data_state_")
    if name.startswith("first"):
        left_out += ("rng_state_",)
    for machines in zip(ours["files"], report["files"], strict=True):
        left, right = (
            [file for file in files if not any(word in file for word in left_out)]
            for files in machines
        )
        assert left == right
