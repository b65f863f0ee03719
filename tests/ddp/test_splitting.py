"""Models whose layers are split over processes (tensor parallel), alone and together with FSDP:
as in one process.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from helpers import HELPERS
from helpers.processes.beside_one_process import (
    NUMBERS,
    close,
    devices,
    goes_on,
    launched,
    same_model,
    same_optimizer,
)

SCRIPT = HELPERS / "ddp" / "split_script.py"
PAIR = ["dropout", "sequence", "method"]
GRID = ["grid", "grid_fsdp", "grid_parts"]
LANGUAGE_MODELS = ["qwen", "grid_qwen"]
ALONE = [*PAIR, "grid", *LANGUAGE_MODELS]
"""Cases that are run in one process; what the others do differently changes nothing there."""
PARAMETERS = 680  # tied embeddings of 11 * 8, two blocks of 16 + 8 * 16 + 16 + 16 * 8 + 8


@pytest.fixture(scope="module", params=devices(4))
def results(
    request, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, Any], dict[str, Any]]:
    """See `launched`."""
    groups = (2, [*PAIR, "qwen"]), (4, [*GRID, "grid_fp16", "grid_qwen"])
    return launched(SCRIPT, tmp_path_factory.mktemp("split"), request.param, ALONE, *groups)


def alone(case: str) -> str:
    return case if case in ALONE else "grid"


def ranks(case: str) -> range:
    return range(2 if case in [*PAIR, "qwen"] else 4)


@pytest.mark.parametrize("case", [*PAIR, *GRID, *LANGUAGE_MODELS])
def test_tensor_parallel_equals_one_process(results, case):
    """With accumulation, clipping, dropout, tied weights and labels of other numbers: losses and
    norms to 1e-5.

    The processes begin with other weights, and with dropout those of a group have to draw the same
    numbers. A batch counts once, however many processes get it. Saved models have the same names,
    shapes and values, and are written by the first process only.
    """
    expected = results(alone(case), "single")
    for rank in ranks(case):
        result = results(case, rank)
        close(expected, result, 1e-5)
        for name in ("predicted", "max_steps", "tokens", "flos", "batch", "best"):
            assert result[name] == expected[name], name
        assert result["saved"] == (expected["saved"] if rank == 0 else None)
    assert expected["predicted"] == list(range(7))
    assert len(set(expected["losses"])) == len(expected["losses"]) == 4
    same_model(
        results.folder / "single" / alone(case) / "saved",
        results.folder / "shared" / case / "saved",
    )


def test_float16_scales_its_losses_and_leaves_out_the_same_steps_everywhere(results):
    first = results("grid_fp16")
    assert first["losses"][0] == pytest.approx(results("grid", "single")["losses"][0], rel=1e-2)
    assert sum(norm < 20 for norm in first["norms"]) >= 2
    assert first["losses"][-1] < first["losses"][0] * 0.8
    for rank in range(1, 4):
        assert [results("grid_fp16", rank)[name] for name in NUMBERS] == [
            first[name] for name in NUMBERS
        ]


@pytest.mark.parametrize(
    ("case", "share"), [("sequence", 0.55), ("method", 0.65), ("grid", 0.3), ("grid_fsdp", 0.3)]
)
def test_tensor_parallel_process_has_a_part_of_the_parameters(results, case, share):
    sizes = [results(case, rank)["local_numel"] for rank in ranks(case)]
    assert results(alone(case), "single")["local_numel"] == PARAMETERS
    assert max(sizes) < share * PARAMETERS
    assert sum(sizes) >= PARAMETERS


@pytest.mark.parametrize("case", ["dropout", "grid", "grid_parts"])
def test_tensor_parallel_resumption_is_exact(results, case):
    """From the middle of a pass, in a model with other first weights; the best model is loaded
    at the end.
    """
    for rank in ranks(case):
        goes_on(results(case, rank), (*NUMBERS, "tokens", "best"))
    folder = results.folder / "shared" / case
    left, right = (
        load_file(path / "saved" / "model.safetensors") for path in (folder, folder / "cut")
    )
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("case", ["sequence", "grid"])
def test_checkpoints_have_the_form_of_one_process(results, case):
    """Whole tensors under the same numbers, so that a training can resume with any number of
    processes.
    """
    name = "checkpoint-4/optimizer.pt"
    same_optimizer(
        results.folder / "single" / alone(case) / name, results.folder / "shared" / case / name
    )
