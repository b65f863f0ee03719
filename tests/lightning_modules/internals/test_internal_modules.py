"""Private names of Lightning in modules mean what we expect."""

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader, DistributedSampler

from helpers.lightning.tiny_modules import make_trainer, points
from lightrainer.lightning_modules import DataModule
from lightrainer.lightning_modules.internals import lightning_internals


class Asked(LightningModule):
    def __init__(self, size: int = 1):
        super().__init__()
        self.asked = lightning_internals.is_made_by_cli()
        self.layer = torch.nn.Linear(size, size)


def test_lightning_cli_is_detected(monkeypatch):
    monkeypatch.setattr("sys.argv", ["program"])
    # Lightning 2.6 uses names that jsonargparse 4.53 is about to rename (2026).
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    options = {"run": False, "save_config_callback": None, "seed_everything_default": False}
    cli = LightningCLI(Asked, args=["--model.size=2"], **options)
    assert cli.model.asked
    assert not Asked().asked
    assert not lightning_internals.is_made_by_cli()


@pytest.mark.parametrize("active", [True, False])
def test_lightning_uses_distributed_samplers_or_not(monkeypatch, active):
    """As it would in two processes: the flag decides whether its sampler is put into a loader."""
    trainer = make_trainer(use_distributed_sampler=not active)
    assert lightning_internals.uses_distributed_samplers(trainer) is not active
    lightning_internals.use_distributed_samplers(trainer, active)
    assert lightning_internals.uses_distributed_samplers(trainer) is active
    connector = trainer._accelerator_connector
    monkeypatch.setattr(type(connector), "is_distributed", True)
    loader = DataLoader(points(), batch_size=4)
    monkeypatch.setattr(type(trainer), "distributed_sampler_kwargs", {"num_replicas": 2, "rank": 0})
    prepared = trainer._data_connector._prepare_dataloader(loader, shuffle=False, mode=None)
    assert isinstance(prepared.sampler, DistributedSampler) is active


@pytest.mark.parametrize("given", [True, False])
def test_data_module_restores_distributed_samplers(given):
    data, trainer, flags = (
        DataModule(points()),
        make_trainer(use_distributed_sampler=given, fast_dev_run=1),
        [],
    )

    class Module(Asked):
        def training_step(self, batch, batch_idx):
            flags.append(lightning_internals.uses_distributed_samplers(trainer))
            return self.layer(torch.ones(1)).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    trainer.fit(Module(), data)
    assert flags == [False]
    assert lightning_internals.uses_distributed_samplers(trainer) is given
