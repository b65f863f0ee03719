"""`data_share` beside strategies that count processes in other ways;
`tests/ddp/test_strategies.py` has real ones.
"""

import types

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy

from helpers.lightning.tiny_modules import points
from lightrainer import DataModule, LossModule
from lightrainer.lightning_modules.tasks.data_share import DataShare, data_share


def trainer_of(counted, rank=2, world_size=4):
    """A trainer whose strategy says so of the data; an exception is raised."""

    class OwnStrategy(DDPStrategy):
        @property
        def distributed_sampler_kwargs(self):
            if isinstance(counted, Exception):
                raise counted
            return counted

    strategy = OwnStrategy()

    class Trainer(types.SimpleNamespace):
        distributed_sampler_kwargs = property(lambda self: strategy.distributed_sampler_kwargs)

    return Trainer(global_rank=rank, world_size=world_size, strategy=strategy)


@pytest.mark.parametrize(
    ("counted", "copies", "share"),
    [
        ({"num_replicas": 4, "rank": 2}, 1, (2, 4)),
        ({"num_replicas": 2, "rank": 1}, 2, (1, 2)),
        ({"num_replicas": 1, "rank": 0}, 4, (0, 1)),
    ],
)
def test_data_share_follows_the_strategy(counted, copies, share):
    result = data_share(trainer_of(counted))
    assert result == DataShare(2, 4, copies)
    assert (result.index, result.count) == share


def test_data_share_without_processes():
    assert (
        data_share(trainer_of(None, rank=0, world_size=1)) == data_share(None) == DataShare(0, 1, 1)
    )


@pytest.mark.parametrize(
    ("counted", "message"),
    [
        (
            KeyError("Invalid mesh_dim_name data_parallel"),
            'Name a dimension of the device mesh "data_parallel"',
        ),
        (
            RuntimeError("Cannot slice a DeviceMesh without mesh_dim_names"),
            "or override that property",
        ),
        # processes 0 and 2, and 1 and 3, are copies
        ({"num_replicas": 2, "rank": 0}, "successive processes"),
        ({"num_replicas": 3, "rank": 2}, "of equal size"),
        ({"num_replicas": 8, "rank": 2}, "of equal size"),
    ],
)
def test_unknown_meshes_are_refused(counted, message):
    data = DataModule(None, points(8), batch_size=2)
    data.trainer = trainer_of(counted)
    data.trainer.lightning_module = None
    data.trainer.accumulate_grad_batches = 1
    data.trainer.strategy.parallel_devices = [torch.device("cpu")]
    with pytest.raises(ValueError, match="OwnStrategy") as raised:
        data.val_dataloader()
    assert message in str(raised.value)


def test_data_share_refuses_a_mesh_with_other_dimensions():
    module = LossModule(torch.nn.Linear(4, 3), loss_fn=torch.nn.MSELoss())
    module._device_mesh = types.SimpleNamespace(mesh_dim_names=("replicate", "shard", "tensor"))
    with pytest.raises(
        ValueError, match=r"\('replicate', 'shard', 'tensor'\).*Override configure_model"
    ):
        module.configure_model()
