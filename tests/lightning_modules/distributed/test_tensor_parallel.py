"""Gradients of parameters under tensor parallelism, in a group of one process."""

import os
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from lightrainer.lightning_modules.distributed.tensor_parallel import _reduce_partial_gradients


@pytest.fixture
def module():
    """A module with a replicated weight, which is a DTensor."""
    with mock.patch.dict(os.environ):
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        module = torch.nn.Module()
        weight = distribute_tensor(torch.ones(2), mesh, [Replicate()])
        module.weight = torch.nn.Parameter(weight)
        yield module
        dist.destroy_process_group()


def test_reduce_partial_gradients_keeps_the_placements_of_the_parameter(module):
    _reduce_partial_gradients(module)
    (module.weight * 2).sum().backward()
    assert module.weight.grad.placements == (Replicate(),)
    assert module.weight.grad.to_local().tolist() == [2.0, 2.0]


def test_reduce_partial_gradients_hides_no_error_of_torch(module, monkeypatch):
    """Otherwise the gradient would silently stay a part."""

    def redistribute(self, *args, **kwargs):
        raise AttributeError("a fault in torch")

    _reduce_partial_gradients(module)
    monkeypatch.setattr(DTensor, "redistribute", redistribute)
    with pytest.raises(AttributeError, match="a fault in torch"):
        (module.weight * 2).sum().backward()
