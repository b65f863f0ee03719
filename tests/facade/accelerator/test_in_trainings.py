"""The accelerator in the middle of trainings: under DDP, and both versions of FSDP, as in one
process.
"""

import pytest
import torch
from safetensors.torch import load_file

from helpers.accelerator.accelerator_ranks_script import WAYS, Model, batch_of, in_a_training
from helpers.trainer.tiny_trainings import arguments
from lightrainer.facade.accelerator.accelerator import Accelerator


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """The same in one process, with batches twice as large."""
    return in_a_training(tmp_path_factory.mktemp("single"), "single")


def tensors(plain):
    return {
        name: torch.tensor(values).reshape(shape) for name, (_, shape, values) in plain[1].items()
    }


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("key", ["norm of a part", "norms", "losses"])
def test_numbers_are_those_of_one_process(two_ranks, single, way, key):
    """Norms of three kinds, of a part of the gradients and of all; and losses after clipping by
    norm and by value.
    """
    for rank in two_ranks[1]:
        numbers = [value if isinstance(value, float) else value[2] for value in rank[way][key]]
        expected = [value if isinstance(value, float) else value[2] for value in single[key]]
        torch.testing.assert_close(
            torch.tensor(numbers), torch.tensor(expected), atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("key", ["weights 1", "weights 2", "afterwards"])
def test_weights_are_whole(two_ranks, single, way, key):
    """Of the model as its user has it, on process 0; and nothing on the other where they are
    sharded.
    """
    first, second = (tensors(rank[way][key]) for rank in two_ranks[1])
    expected = tensors(single[key])
    assert first.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(first[name], tensor, atol=1e-5, rtol=1e-5)
    assert not second if way.startswith("fsdp") else second.keys() == first.keys()


@pytest.mark.parametrize("way", WAYS)
def test_prepared_and_unwrapped_models(two_ranks, way):
    for rank in two_ranks[1]:
        result = rank[way]
        assert result["wrapped"]
        assert result["unwrapped"]
        assert result["prepared"]
        assert result["other"] == "Model"
        assert result["gathered"][2] == [2, 3]
        assert result["type"] == {
            "ddp": ["MULTI_CPU", False, False],
            "fsdp1": ["FSDP", False, False],
        }.get(way, ["FSDP", True, True])
        assert result["mesh"] == (way == "fsdp2")
        assert result["own model"] == (
            "DistributedDataParallel" if way == "ddp" else ["raises", "NotImplementedError"]
        )


@pytest.mark.parametrize("way", WAYS)
def test_files_are_written_once_and_whole(two_ranks, way):
    folder, ranks = two_ranks
    saved = load_file(folder / way / "saved" / "model.safetensors")
    expected = tensors(ranks[0][way]["afterwards"])
    assert saved.keys() == expected.keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in expected.items())
    assert torch.load(folder / way / "thing.pt", weights_only=True) == {"rank": 0}


def test_gradients_that_are_kept_apart_part_the_processes(two_ranks):
    """With `no_sync` around each backward pass of a training; without it they have the same
    weights.
    """
    first, second = two_ranks[1]
    assert first["apart"] != second["apart"]
    assert first["ddp"]["afterwards"] == second["ddp"]["afterwards"]


def test_processes_with_fewer_batches_go_along(two_ranks):
    assert [rank["uneven"] for rank in two_ranks[1]] == [2, 4]
    assert all(rank["ended"] for rank in two_ranks[1])


def test_accelerator_custom_loop_after_a_training(tmp_path):
    """A prepared optimizer steps at the end of windows again, and backward divides by their
    length.
    """
    accelerator = Accelerator(arguments(tmp_path, gradient_accumulation_steps=2))
    model = Model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    before = model.head.weight.detach().clone()
    changed = []
    for step in range(4):
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch_of(step))["loss"])
            optimizer.step()
            optimizer.zero_grad()
        changed.append(not torch.equal(model.head.weight, before))
    assert changed == [False, True, True, True]
