"""The same script in two processes: it trains as the reference's two, evaluates every sample
once, and saves once.
"""

import math

import pytest
from safetensors.torch import load_file

from lightrainer.lightning_modules.checkpoints import problems

OURS, REFERENCE = "lightrainer", "transformers"
SCENARIOS = ["points", "tokens"]
NUMBERS = ("loss", "grad_norm", "learning_rate", "epoch", "eval_loss", "step")
NUMBERS += ("num_input_tokens_seen",)


@pytest.fixture(scope="module", autouse=True)
def _reference_is_there():
    pytest.importorskip("transformers")


def numbers(history: list[dict]) -> list[dict]:
    return [{key: entry[key] for key in NUMBERS if key in entry} for entry in history]


def assert_close(expected: list[dict], actual: list[dict]) -> None:
    assert [list(entry) for entry in expected] == [list(entry) for entry in actual]
    for left, right in zip(expected, actual, strict=True):
        assert right == pytest.approx(left, rel=1e-5, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("scenario", [*SCENARIOS, "half"])
def test_ddp_two_ranks_equal_two_of_the_reference(two_ranks, scenario):
    """Accumulation with a remainder and dropout: losses, norms, rates, evaluation losses and
    weights to 1e-6.
    """
    expected, actual = two_ranks(REFERENCE, scenario), two_ranks(OURS, scenario)
    for theirs, ours in zip(expected.ranks, actual.ranks, strict=True):
        assert theirs["global_step"] == ours["global_step"] > 0
        assert_close(numbers(theirs["history"]), numbers(ours["history"]))
        assert ours["sums"] == pytest.approx(theirs["sums"], rel=1e-5, abs=1e-6)
        assert ours["scaler"] == theirs["scaler"]

    # The reference's is of each process, for the steps after the last log.
    means = [rank["history"][-1]["train_loss"] for rank in expected.ranks]
    for rank in actual.ranks:
        assert rank["history"][-1]["train_loss"] == pytest.approx(sum(means) / 2, rel=1e-5)
    losses = [entry["loss"] for entry in actual.ranks[0]["history"] if "loss" in entry]
    assert len(set(losses)) == len(losses)


def test_ddp_ranks_skip_the_same_steps(two_ranks):
    """Of a training in float16: those whose gradients are infinite on one of them; the learning
    rate waits for both.
    """
    first, second = (
        [e for e in rank["history"] if "grad_norm" in e] for rank in two_ranks(OURS, "half").ranks
    )
    finite = [math.isfinite(entry["grad_norm"]) for entry in first]
    assert finite == [math.isfinite(entry["grad_norm"]) for entry in second]
    skipped = finite.index(True)
    assert skipped > 0
    rates = [entry["learning_rate"] for entry in first]
    assert rates[: skipped + 1] == [1e-2] * (skipped + 1)
    assert two_ranks(OURS, "half").ranks[0]["scaler"]["scale"] == 2.0 ** (20 - finite.count(False))


def test_ddp_compiled_model_in_float16_equals_the_model(two_ranks):
    """The norms of the gradients, which are clipped, are without the loss scale, and the same
    steps are left out.
    """
    plain, compiled = (two_ranks(OURS, scenario).ranks for scenario in ("half", "half_compiled"))
    for plain_rank, compiled_rank in zip(plain, compiled, strict=True):
        assert_close(numbers(plain_rank["history"]), numbers(compiled_rank["history"]))
        assert compiled_rank["scaler"] == plain_rank["scaler"]
        assert list(compiled_rank["sums"].values()) == pytest.approx(
            list(plain_rank["sums"].values()), rel=0, abs=1e-6
        )


@pytest.mark.parametrize("scenario", [*SCENARIOS, "half"])
def test_ddp_ranks_end_with_the_same_weights(two_ranks, scenario):
    """Bit for bit; and they log the same numbers."""
    first, second = two_ranks(OURS, scenario).ranks
    assert first["weights"] == second["weights"]
    # as text NaN equals NaN
    assert str(numbers(first["history"])) == str(numbers(second["history"]))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ddp_saves_one_checkpoint(two_ranks, scenario):
    """One folder is left, and it is whole."""
    run = two_ranks(OURS, scenario)
    first = run.ranks[0]
    left = [path for path in (run.folder / scenario).iterdir() if path.is_dir()]
    assert [path.name for path in left] == [f"checkpoint-{first['global_step']}"]
    reference = two_ranks(REFERENCE, scenario).folder / scenario / left[0].name
    assert {path.name for path in reference.iterdir()} <= {path.name for path in left[0].iterdir()}
    assert problems(left[0]) == []
    weights = load_file(left[0] / "model.safetensors")
    assert {name: tensor.tolist() for name, tensor in weights.items()} == first["weights"]
