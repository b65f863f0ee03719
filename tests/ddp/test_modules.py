"""Modules and `DataModule` in two processes: the training is that of one process with the
batches of both.
"""

import pytest
import torch
from safetensors.torch import load_file

from helpers.ddp.module_runs import Words, evaluated, pairs, unfrozen, words

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning",
    "ignore:.*does not have many workers",
    "ignore:You defined a `validation_step` but have no `val_dataloader`",
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    torch.set_num_threads(1)
    return words(8, tmp_path_factory.mktemp("alone"))


@pytest.fixture
def both(two_ranks):
    return two_ranks("lightrainer", "modules")


@pytest.mark.parametrize("name", ["words", "accumulated", "sharded"])
def test_module_training_equals_one_process(alone, both, name):
    """Each token counts the same over processes and batches; DDP, with accumulation, and sharded
    (made when needed).
    """
    first, second = (rank[name] for rank in both.ranks)
    assert first == second
    assert first["steps"] == alone["steps"] == 10
    assert first["weights"] == pytest.approx(alone["weights"], abs=2e-5)
    assert first["val_acc"] == first["val_plain"] == pytest.approx(alone["val_acc"])
    assert first["train_loss"] == pytest.approx(alone["train_loss"], abs=2e-5)
    assert first["sharded"] == (name == "sharded")


def test_module_without_the_other_process_differs(alone, tmp_path):
    """Negative control: half of the batch makes other weights."""
    assert words(4, tmp_path)["weights"] != pytest.approx(alone["weights"], abs=1e-3)


def test_module_saves_whole_weights(both):
    whole = {key: value.shape for key, value in Words().state_dict().items()}
    for name in ("ddp", "sharded"):
        weights = load_file(both.folder / name / "saved" / "model.safetensors")
        assert {key: value.shape for key, value in weights.items()} == whole


def test_module_evaluates_each_sample_once(both):
    """Eleven, three and nine samples in rounds of eight: what fills up the rounds does not count,
    also if its loss is NaN.
    """
    expected = evaluated(4)
    first, second = (rank["evaluated"] for rank in both.ranks)
    assert first == second == pytest.approx(expected, rel=1e-5)
    assert set(expected) == {
        f"val_{data}_{name}" for data in "abc" for name in ("loss", "acc", "plain")
    }
    assert [first[f"val_{data}_plain"] for data in "ab"] == [
        first[f"val_{data}_acc"] for data in "ab"
    ]


@pytest.mark.parametrize("name", ["pairs", "task accumulated"])
def test_tuples_and_a_loss_function(both, name):
    """Each label that the loss is a mean of counts the same, and each sample is evaluated once."""
    first, second = (rank[name] for rank in both.ranks)
    expected = pairs(8, task="task" in name)
    assert first == second
    assert first["steps"] == expected["steps"] == 6
    assert first["weights"] == pytest.approx(expected["weights"], abs=2e-5)
    assert (first["val_loss"], first["val_acc"]) == pytest.approx(
        (expected["val_loss"], expected["val_acc"]), rel=1e-4
    )
    assert pairs(4)["weights"] != pytest.approx(expected["weights"], abs=1e-3), (
        "other batches make other weights"
    )


@pytest.mark.parametrize("name", ["unfrozen", "unfrozen accumulated"])
def test_module_averages_layers_that_a_callback_unfreezes(both, name):
    """DDP does not: it leaves out what was frozen when it was set up."""
    first, second = (rank[name] for rank in both.ranks)
    assert first == second
    assert first == pytest.approx(unfrozen(8), abs=1e-5)
    assert unfrozen(4) != pytest.approx(first, abs=1e-3), "other batches make other weights"


@pytest.mark.parametrize("name", ["interrupted", "interrupted by hand"])
def test_module_resumption_is_exact(both, name):
    """The generators of both processes, the position in the data, and gradients that are not
    stepped with yet, also those of a module that accumulates by itself.
    """
    first, second = (rank[name] for rank in both.ranks)
    assert first == second
    names = [f"trained step={step}" for step in range(1, 7)] + [
        f"validated step={step}" for step in (1, 3, 4, 6)
    ]
    assert list(first["resumed"]) == names
    assert first["whole"][0] == 6
    assert [name for name, values in first["resumed"].items() if values != first["whole"]] == []


def test_module_resumption_from_folders_on_both_ranks(both):
    """Of `lightning.Trainer` and of the facade; without the generators of each process other
    weights would come out.
    """
    first, second = (rank["folders"] for rank in both.ranks)
    assert first == second
    files = first.pop("files")
    assert {"rng_state_0.pth", "rng_state_1.pth", "data_state_0.pth", "data_state_1.pth"} <= set(
        files
    )
    assert len(first) == 8
    assert set(first.values()) == {first["facade"]}
