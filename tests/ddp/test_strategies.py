"""`LossModule` and `DataModule` under each strategy of Lightning that runs on a CPU: batches,
numbers, resumption.
"""

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers import HELPERS
from helpers.processes.starting import finished_ranks

SCRIPT = HELPERS / "ddp" / "strategy_script.py"
BESIDE = Path(sys.prefix) / "deepspeed"
"""Where the Makefile installs it."""
REPLICATED = ["ddp", "fsdp", "sharded", "sharded, one file"]
SPLIT = ["split", "split, one file"]
ZERO = ["zero 1", "zero 2", "zero 3"]
with_deepspeed = pytest.mark.skipif(
    not BESIDE.is_dir(), reason="deepspeed is not installed separately; run `make test`"
)
ALL = [
    "alone",
    *REPLICATED,
    *SPLIT,
    "both",
    *(pytest.param(way, marks=with_deepspeed) for way in ZERO),
]

Runs = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """`runs(way)` returns what the ranks saw; ways that need the same processes are run
    together.
    """
    folder = tmp_path_factory.mktemp("strategies")
    programs = [
        ("one", ["alone", "alone, large batches"], 1),
        ("two", [*REPLICATED, *SPLIT, "refused", "without states", "by loss"], 2),
        ("four", ["both"], 4),
    ]
    programs += [("deepspeed", ZERO, 2)]

    @functools.cache
    def get(way: str) -> list[Any]:
        name, scenarios, processes = next(program for program in programs if way in program[1])
        if not (folder / f"{way}-rank0.json").is_file():
            options: dict[str, Any] = {
                "log": folder / f"{name}.log",
                "seconds": 240,
                "processes": processes,
            }
            if name == "deepspeed":
                options |= {"library": "lightrainer and deepspeed", "BESIDE": str(BESIDE)}
            finished_ranks(SCRIPT, str(folder), *scenarios, **options)
        return [
            json.loads((folder / f"{way}-rank{rank}.json").read_text()) for rank in range(processes)
        ]

    return get


@pytest.mark.parametrize("way", ALL)
def test_resumes_exactly(runs: Runs, way: str) -> None:
    """In the middle of an epoch and after one: optimizer, schedule, data and generators of each
    process.
    """
    for rank in runs(way):
        assert sorted(rank["resumed"]) == ["epoch-0", "step-2"]
        for name, values in rank["resumed"].items():
            assert values == rank["whole"], name


@pytest.mark.parametrize("way", [way for way in ALL if way not in ("alone", "fsdp")])
def test_trains_as_one_process(runs: Runs, way: str) -> None:
    """The same measures and weights as with the batches of both shares in one process; clipped,
    but for FSDP.
    """
    single = "alone" if way in SPLIT else "alone, large batches"
    expected = runs(single)[0]["result"]
    for rank in runs(way):
        assert rank["result"] == pytest.approx(expected, abs=2e-5)
        assert rank["counts"] == {
            "val_sized_count": 22.0,
            "val_stream_count": 22.0,
        }, "each sample once"


def test_model_parallel_other_batches_give_other_weights(runs: Runs) -> None:
    """Negative control."""
    first, second = (runs(way)[0]["result"] for way in ("alone", "alone, large batches"))
    assert first != pytest.approx(second, abs=1e-2)


@pytest.mark.parametrize(
    ("way", "shares"),
    [("ddp", [0, 1]), ("sharded", [0, 1]), ("split", [0, 0]), ("both", [0, 0, 1, 1])],
)
def test_processes_with_parts_of_a_layer_read_the_same(
    runs: Runs, way: str, shares: list[int]
) -> None:
    """Training, validation and streams, each rank those of its share."""
    alone = runs("alone")[0]["batches"]
    count = max(shares) + 1
    for rank, share in zip(runs(way), shares, strict=True):
        assert rank["batches"]["training"] == alone["training"][share::count]
        for name in ("validation", "stream"):
            full_rounds = len(alone[name]) // count - 1
            assert rank["batches"][name][:full_rounds] == alone[name][share::count][:full_rounds]


def test_model_parallel_refuses_a_model_that_is_not_split(runs: Runs) -> None:
    """`ModelParallelStrategy()` takes all processes of a machine for parts of each layer."""
    for message in runs("refused"):
        assert "tensor_parallel_size=2, but no layer of Sequential is split" in str(message)
        assert "ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)" in str(message)


def test_schedule_that_follows_the_loss_has_one_rate_in_all_processes(runs: Runs) -> None:
    first, second = runs("by loss")
    assert first["loss"] != second["loss"], "negative control: each process has logged its own"
    assert first["rate"] == second["rate"] < 0.05
    assert first["result"] == second["result"], "the models are one"


def test_model_parallel_checkpoint_without_optimizer_states_warns(runs: Runs) -> None:
    """Written in the first batch; Lightning's own errors are an IndexError and missing keys."""
    for logged in runs("without states"):
        for way, strategy in (
            ("fsdp", "FSDPOnCPU"),
            ("sharded", "ModelParallelStrategy"),
            ("sharded, one file", "ModelParallelStrategy"),
        ):
            (message,) = logged[f"{way}-before"]
            assert (
                f"{way}-before.ckpt holds no optimizer states, so Lightning's {strategy} cannot "
                "load it" in message
            )
            assert logged[f"{way}-after"] == ["resumed"], "negative control"
