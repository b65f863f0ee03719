"""Grids of processes: one for the same sizes, and others for another group."""

import os
from unittest import mock

import lightning
import pytest
import torch
import torch.distributed as dist

from helpers.lightning.tiny_modules import make_trainer
from lightrainer.lightning_modules.distributed.device_meshes import (
    ModelParallelStrategy,
    cached_device_mesh,
)


@pytest.fixture
def join():
    """Join a group of one process, after leaving the one before; Lightning tells the environment
    of it.
    """

    def joined():
        left()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def left():
        if dist.is_initialized():
            dist.destroy_process_group()

    with mock.patch.dict(os.environ):
        yield joined
    left()


def test_device_mesh_is_cached_while_its_group_exists(join):
    join()
    grid = cached_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b"))
    assert cached_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b")) is grid
    assert cached_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "c")) is not grid
    assert cached_device_mesh("cpu", (1,)) is cached_device_mesh("cpu", (1,))
    join()
    assert cached_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b")) is not grid


class Module(lightning.LightningModule):
    def configure_model(self):
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_device_mesh_is_shared_by_runs_of_lightning(join):
    """Also one that Lightning asks torch for by itself; afterwards torch makes grids as ever."""
    join()
    grids = []
    for _ in range(2):
        module, strategy = (
            Module(),
            ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=1),
        )
        trainer = make_trainer(devices=1, strategy=strategy, max_steps=1)
        trainer.fit(module, torch.utils.data.DataLoader(torch.ones(2, 2)))
        grids.append(module.device_mesh)
        assert grids[-1].mesh_dim_names == ("data_parallel", "tensor_parallel")
    assert grids[0] is grids[1]
    meshes = [dist.device_mesh.init_device_mesh("cpu", (1,)) for _ in range(2)]
    assert meshes[0] is not meshes[1]
