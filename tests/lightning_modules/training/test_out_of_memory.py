"""Errors of memory: recognised, explained, and shared."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lightrainer.lightning_modules.training.out_of_memory import (
    OutOfMemoryConsensus,
    OutOfMemoryOnOtherRankError,
    is_out_of_memory,
)


@pytest.fixture
def _alone(tmp_path):
    """A group of one process: what is exchanged comes back."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_real_errors_of_memory_are_recognised():
    """The CPU has a limit too."""
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**56)
    assert is_out_of_memory(error.value)


@pytest.mark.usefixtures("_alone")
def test_out_of_memory_waits_for_all_ranks():
    """Other errors do not, and the next step is a new one."""
    shared = OutOfMemoryConsensus(torch.device("cpu"))
    assert not shared.store(ZeroDivisionError())
    assert shared.store(torch.OutOfMemoryError("none left"))
    with pytest.raises(torch.OutOfMemoryError, match="none left") as error:
        shared.settle()
    assert error.value.is_shared
    assert shared.failure is None
    shared.settle()


@pytest.mark.usefixtures("_alone")
def test_out_of_memory_of_another_process(monkeypatch):
    def said_elsewhere(flags, op=None):
        flags[0] = 1

    monkeypatch.setattr(dist, "all_reduce", said_elsewhere)
    with pytest.raises(OutOfMemoryOnOtherRankError) as error:
        OutOfMemoryConsensus(torch.device("cpu")).settle()
    assert is_out_of_memory(error.value)


@pytest.mark.usefixtures("_alone")
def test_gradients_are_averaged(monkeypatch):
    """Of every kind: sparse, of two types, frozen, and missing in this process."""
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    parameters = [nn.Parameter(torch.zeros(size)) for size in (3, 4, 30, 2)]
    parameters += [
        nn.Parameter(torch.zeros(2, dtype=torch.float64)),
        nn.Parameter(torch.zeros(3), requires_grad=False),
    ]
    embedding = nn.Embedding(5, 2, sparse=True)
    unused = nn.Parameter(torch.zeros(2))
    sum(parameter.sum() for parameter in parameters if parameter.requires_grad).backward()
    embedding(torch.tensor([1])).sum().backward()
    OutOfMemoryConsensus(torch.device("cpu")).settle([*parameters, embedding.weight, unused])
    for parameter in parameters[:-1]:
        assert torch.equal(parameter.grad, torch.full_like(parameter, 0.5))
    assert torch.equal(embedding.weight.grad.to_dense()[1], torch.full((2,), 0.5))
    assert parameters[-1].grad is None
    assert unused.grad is None  # no process has one
