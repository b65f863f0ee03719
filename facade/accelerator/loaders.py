"""Loaders that somebody made with torch, prepared by `accelerator.prepare`."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from ...lightning_modules.common.nested import map_nested
from ...lightning_modules.data.batch_samplers import has_batches, iterates_as_torch
from ...lightning_modules.data.loaders import EpochLoader, rebuild_loader
from ..arguments.parallelism import copies_of_batches


def prepared(accelerator: Any, loader: DataLoader, *, placed: bool) -> DataLoader:
    """As `accelerate.Accelerator.prepare_data_loader`: see `Accelerator.prepare_data_loader` here.

    Args:
        accelerator: whose processes share the data.
        loader: one of torch's.
        placed: batches are moved to the device.
    """
    alone = accelerator.num_processes == 1
    if isinstance(loader, EpochLoader) or (alone and not iterates_as_torch(loader)):
        return loader
    if not has_batches(loader):
        if alone:
            return loader
        raise NotImplementedError(
            "A DataLoader with batch_size=None cannot be dealt out to several processes, as it hands out what the "
            "dataset gives. Give it a batch_size or a batch_sampler, or shard the dataset and do not prepare it."
        )
    config = accelerator.dataloader_config
    rebuilt = rebuild_loader(
        loader,
        seed=accelerator.args.data_seed,
        seedable=config.use_seedable_sampler,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
        copies=copies_of_batches(accelerator.args),
        even_batches=accelerator.even_batches,
        split_batches=config.split_batches,
        dispatch_batches=config.dispatch_batches,
    )
    rebuilt.watcher = _Watcher(accelerator, placed=placed)
    return rebuilt


class _Watcher:
    """Puts batches on the device, and tells the accelerator which is the last one."""

    def __init__(self, accelerator: Any, *, placed: bool) -> None:
        self.accelerator = accelerator
        self.placed = placed

    def handed_out(self, loader: EpochLoader, batch: Any) -> Any:
        """See `BatchWatcher`."""
        accelerator = self.accelerator
        accelerator.gradient_state.reads(loader)
        if not self.placed:
            return batch
        device, go_on = accelerator.device, accelerator.dataloader_config.non_blocking
        return map_nested(lambda leaf: leaf.to(device, non_blocking=go_on) if hasattr(leaf, "to") else leaf, batch)

    def ended(self, loader: EpochLoader) -> None:
        """See `BatchWatcher`."""
        self.accelerator.gradient_state.leaves(loader)
