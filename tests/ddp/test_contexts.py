"""Sequences that processes share (context parallel), also beside other ways to share a model: as
in one process.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers import HELPERS
from helpers.processes.beside_one_process import (
    NUMBERS,
    close,
    devices,
    goes_on,
    launched,
    same_model,
)

SCRIPT = HELPERS / "ddp" / "context_script.py"
LANGUAGE_MODELS = ["llama", "smooth_llama"]
PAIR = ["mean", "items", "smooth", "experts", *LANGUAGE_MODELS]
HEADS = ["heads_mean", "heads_items", "heads_experts", "heads_llama"]
OWN = ["own_mean", "own_items"]
GRID = [
    "grid_items",
    "wide_mean",
    "split_items",
    "heads_grid_items",
    "heads_wide_llama",
    "heads_split_items",
]
# embeddings of 31 and 13, two blocks of norm, three projections and one with a bias, and a head
PARAMETERS = 3375


@pytest.fixture(scope="module", params=devices(4))
def results(
    request, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, Any], dict[str, Any]]:
    """See `launched`."""
    groups = (2, [*PAIR, *OWN, *HEADS, "bf16", "refused", "refused_heads"]), (4, GRID)
    return launched(SCRIPT, tmp_path_factory.mktemp("contexts"), request.param, PAIR, *groups)


def single(case: str) -> str:
    """The case in one process that this one is compared with."""
    return (
        case
        if case in PAIR
        else next((form for form in ("mean", "experts", "llama") if case.endswith(form)), "items")
    )


def ranks(case: str) -> range:
    return range(4 if case in GRID else 2)


@pytest.mark.parametrize("case", [*PAIR, *OWN, *HEADS, *GRID])
def test_context_parallel_equals_one_process(results, case):
    """With accumulation and clipping, means and sums over labels, of which a process of four has
    none: to 1e-5.

    Sequences are of 13 positions, which four parts do not divide; some are padded. Keys and values
    go round by either method, and activations are computed again. An own `compute_loss` returns the
    loss of the model. Or heads of attention are dealt out, also fewer of keys than processes.
    """
    expected = results(single(case), "single")
    for rank in ranks(case):
        close(expected, results(case, rank), 1e-6 if case.startswith("heads") else 1e-5)
        kind = "SequenceParallelStrategy" if case.startswith("heads") else "ContextParallelStrategy"
        assert results(case, rank)["strategy"] == kind
        for name in ("tokens", "batch"):  # once, however many processes share it
            assert results(case, rank)[name] == expected[name], name
        size = 4 if "wide" in case else 2
        assert results(case, rank)["sizes"] == (
            [1, size] if case.startswith("heads") else [size, 1]
        )
    assert len(set(expected["losses"])) == len(expected["losses"]) == 4


@pytest.mark.parametrize(
    ("case", "argument"), [("refused", "cp_size"), ("refused_heads", "sp_size")]
)
def test_context_parallel_refuses_unsupported_batches_with_advice(results, case, argument):
    """The first batch ends the training of both processes, and attention is torch's own again."""
    expected = {
        "elsewhere": "the model did not call torch.nn.functional.scaled_dot_product_attention",
        "dropout": "the model calls scaled_dot_product_attention with dropout_p=0.1: ",
        "loss": f"{argument}=2 cannot be combined with compute_loss_func",
    }
    for rank in (0, 1):
        result = results(case, rank)
        assert result["message"].keys() == expected.keys()
        assert all(expected[name] in message for name, message in result["message"].items())
        assert result["attention"] is True
        assert result["warnings"] == [
            0,
            0,
            1,
        ], "of the Trainer's loss, of the model's, and of another one"


def test_half_precision_is_near_but_not_the_same(results):
    close(results("items", "single"), results("bf16"), 2e-2)
    assert results("bf16")["losses"] != pytest.approx(
        results("items", "single")["losses"], rel=1e-6
    )


@pytest.mark.parametrize("case", [*PAIR, *HEADS, *GRID])
def test_evaluation_sees_whole_sequences_in_order(results, case):
    """Every sample once, every position where it was; attention is torch's own again. Saved
    models are whole.
    """
    expected = results(single(case), "single")
    for rank in ranks(case):
        result = results(case, rank)
        np.testing.assert_allclose(result["logits"], expected["logits"], rtol=1e-4, atol=1e-5)
        assert np.shape(result["logits"]) == (8, 11, 31)
        assert result["attention"] is True
    same_model(
        results.folder / "single" / single(case) / "saved",
        results.folder / "shared" / case / "saved",
    )


@pytest.mark.parametrize(("case", "share"), [("items", 0.51), ("grid_items", 0.26)])
def test_context_parallel_shards_the_model_over_its_ranks(results, case, share):
    sizes = [results(case, rank)["local_numel"] for rank in ranks(case)]
    assert results(single(case), "single")["local_numel"] == sum(sizes) == PARAMETERS
    assert max(sizes) < share * PARAMETERS


@pytest.mark.parametrize("case", ["items", "grid_items", "heads_items"])
def test_context_parallel_resumption_is_exact(results, case):
    """From the middle of a pass, in a model with other first weights."""
    for rank in ranks(case):
        goes_on(results(case, rank), (*NUMBERS, "tokens", "logits"))
