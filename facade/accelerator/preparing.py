"""Preparation of models, loaders, optimizers and schedules of custom loops for several processes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from torch import nn
from torch.distributed.algorithms.join import Join
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from ...lightning_modules.common.nested import to_device
from ...lightning_modules.data.batch_samplers import has_batches, iterates_as_torch, rounds_filled
from ...lightning_modules.data.loaders import EpochLoader, loader_after, rebuild_loader
from ...lightning_modules.distributed import sharding
from ...lightning_modules.internals.precision import cast_for_good
from ...lightning_modules.training.out_of_memory import release_memory
from ..arguments.parallelism import ways_of_sharing
from ..distributed.process import forwarded
from ..strategies import choose
from .gradients import Gradients
from .prepared import PreparedOptimizer, PreparedScheduler

logger = logging.getLogger(__name__)


class Preparing(Gradients):
    """The members of `accelerate.Accelerator` that prepare objects and release them."""

    dataloader_config: SimpleNamespace
    device_placement = True
    step_scheduler_with_optimizer = True
    _models: list[nn.Module]
    _schedulers: list[PreparedScheduler]
    _dataloaders: list[DataLoader]

    split_batches: bool = forwarded("dataloader_config.split_batches", "Each batch is split over all processes.")
    dispatch_batches: bool | None = forwarded("dataloader_config.dispatch_batches", "Process 0 reads all batches.")
    even_batches: bool = forwarded(
        "dataloader_config.even_batches", "The last round of loaders prepared from now on is padded.", writable=True
    )
    use_seedable_sampler: bool = forwarded("dataloader_config.use_seedable_sampler", "The order depends on the seed.")
    non_blocking: bool = forwarded("dataloader_config.non_blocking", "Copies to the device are asynchronous.")
    use_stateful_dataloader: bool = forwarded("dataloader_config.use_stateful_dataloader", "Always False.")

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """Prepare models, optimizers, schedules and loaders, each by its own method; return others unchanged.

        Args:
            args: the objects; several are returned as a tuple in their order.
            device_placement: for each of them, whether it is moved to the device.

        Raises:
            ValueError: `device_placement` has another length, or a model lies on several devices.
        """
        placements: list[bool | None] = [None] * len(args)
        if device_placement is not None:
            placements = list(device_placement)

        prepared = []
        for unprepared, placement in zip(args, placements, strict=True):
            prepared.append(self._prepare_one(unprepared, placement))

        # Schedules last: each looks for its optimizer among the prepared ones.
        for index, item in enumerate(prepared):
            if isinstance(item, LRScheduler):
                prepared[index] = self.prepare_scheduler(item)

        if len(prepared) == 1:
            return prepared[0]
        return tuple(prepared)

    def _prepare_one(self, unprepared: Any, device_placement: bool | None) -> Any:
        if isinstance(unprepared, DataLoader):
            return self.prepare_data_loader(unprepared, device_placement=device_placement)
        if isinstance(unprepared, nn.Module):
            return self.prepare_model(unprepared, device_placement=device_placement)
        if isinstance(unprepared, Optimizer):
            return self.prepare_optimizer(unprepared, device_placement=device_placement)
        return unprepared

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Move a model to the device, cast its forward passes, and wrap it in `DistributedDataParallel`.

        The model of a training, which Lightning prepares, and sharded models are returned unchanged.

        Args:
            model: any model; its mode is kept.
            device_placement: False leaves it on its device.
            evaluation_mode: do not wrap it: it is not trained.

        Raises:
            ValueError: several processes, and the model lies on several devices.
            NotImplementedError: it would have to be sharded for a custom loop.
        """
        is_of_run = self.strategy.runs and self.strategy.is_trained(model)
        if is_of_run or sharding.is_sharded(model) or model in self._models:
            return model

        # Device.
        is_on_several = self.verify_device_map(model)
        if is_on_several and self.num_processes > 1:
            raise ValueError("The model lies on several devices: start one process, or load it without device_map.")
        if device_placement is not False and not is_on_several:
            model = model.to(self.device)

        # Precision.
        if self.native_amp:
            cast_for_good(model, self.autocast)

        # Exchange of gradients.
        is_trained = not evaluation_mode and any(parameter.requires_grad for parameter in model.parameters())
        if is_trained and self.num_processes > 1:
            model = choose(self.args, find_unused_parameters=False).wrap(model, self.device)
        self._models.append(model)
        return model

    def prepare_data_loader(
        self, data_loader: DataLoader, device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
    ) -> DataLoader:
        """Shard a loader over the processes, in an order that depends on seed and epoch.

        While it is iterated, `gather_for_metrics` drops the samples that pad the last batch.

        Args:
            data_loader: a torch DataLoader. Loaders of the Trainer are returned unchanged, and in one process those
                with an iteration of their own.
            device_placement: False does not move batches to the device.
            slice_fn_for_dispatch: not used: a batch is read for one process.

        Raises:
            NotImplementedError: several processes, and the loader yields samples instead of batches.
        """
        loader = _prepared_loader(self, data_loader, placed=device_placement is not False)
        if not any(loader is prepared for prepared in self._dataloaders):
            self._dataloaders.append(loader)
        return loader

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None = None) -> PreparedOptimizer:
        """Wrap an optimizer so that it steps at the end of an `accumulate` window, see `PreparedOptimizer`.

        Args:
            optimizer: any; prepared ones are returned unchanged.
            device_placement: False does not move its state to the device of the parameters.
        """
        if isinstance(optimizer, PreparedOptimizer):
            return optimizer
        if device_placement is not False and optimizer.state:
            optimizer.load_state_dict(optimizer.state_dict())

        prepared = PreparedOptimizer(optimizer, self)
        self._optimizers.append(prepared)
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> PreparedScheduler:
        """Wrap a schedule so that it steps with its prepared optimizer, see `PreparedScheduler`."""
        if isinstance(scheduler, PreparedScheduler):
            return scheduler

        # It may have been made for the optimizer, or for the prepared one; else it follows all of them.
        scheduled = getattr(scheduler, "optimizer", None)
        optimizers = [one for one in self._optimizers if scheduled is one or scheduled is one.optimizer]
        if not optimizers:
            optimizers = list(self._optimizers)

        prepared = PreparedScheduler(scheduler, self, optimizers)
        self._schedulers.append(prepared)
        return prepared

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Return a loader without its first batches; those of a map-style dataset are not read."""
        return loader_after(dataloader, num_batches)

    @contextlib.contextmanager
    def join_uneven_inputs(self, joinables: list[Any], even_batches: bool | None = None) -> Iterator[None]:
        """Allow uneven numbers of batches: finished processes shadow the collectives of the others.

        Unlike in the reference, on the CPU too.

        Args:
            joinables: the prepared models.
            even_batches: of the prepared loaders within the block; by default that of the accelerator.
        """
        if self.num_processes == 1:
            yield
            return

        are_even = self.even_batches
        if even_batches is not None:
            are_even = even_batches
        joined = Join(joinables, enable=not are_even, throw_on_early_termination=False)
        with self._override_even_batches(even_batches), joined:
            yield

    @contextlib.contextmanager
    def _override_even_batches(self, even_batches: bool | None) -> Iterator[None]:
        if even_batches is None:
            yield
            return

        samplers: list[Any] = [loader.batch_sampler for loader in self._dataloaders]
        if not all(hasattr(sampler, "even_batches") for sampler in samplers):
            logger.warning("even_batches=%s changes nothing for streams, and where process 0 reads.", even_batches)
        with rounds_filled(samplers, even_batches):
            yield

    def verify_device_map(self, model: nn.Module) -> bool:
        """Return whether a model, or a part of it, lies on several devices (`device_map`)."""
        return any(len(getattr(module, "hf_device_map", ())) > 1 for module in model.modules())

    def free_memory(self, *objects: Any) -> list[None]:
        """Release prepared objects and the cached memory of the device; returns a None for each argument."""
        self._models.clear()
        self._optimizers.clear()
        self._schedulers.clear()
        self._dataloaders.clear()
        self.step = 0

        release_memory()
        return [None] * len(objects)

    clear = free_memory


def _prepared_loader(accelerator: Any, loader: DataLoader, *, placed: bool) -> DataLoader:
    """Return the loader of `Preparing.prepare_data_loader`.

    Args:
        accelerator: its processes share the data.
        loader: a torch DataLoader.
        placed: move batches to the device.
    """
    if isinstance(loader, EpochLoader):
        return loader

    # Iterations that are not torch's are left alone where nothing has to be shared.
    is_alone = accelerator.num_processes == 1
    if is_alone and not (iterates_as_torch(loader) and has_batches(loader)):
        return loader
    if not has_batches(loader):
        raise NotImplementedError("A DataLoader with batch_size=None cannot be sharded: give it a batch_size.")

    ways = ways_of_sharing(accelerator.args, accelerator.dataloader_config, accelerator.even_batches)
    rebuilt = rebuild_loader(loader, **ways)
    rebuilt.watcher = _Watcher(accelerator, placed=placed)
    return rebuilt


class _Watcher:
    """Move batches to the device, and record the active loader in the accelerator."""

    def __init__(self, accelerator: Any, *, placed: bool) -> None:
        self.accelerator = accelerator
        self.placed = placed

    def handed_out(self, loader: EpochLoader, batch: Any) -> Any:
        """See `BatchWatcher`."""
        self.accelerator.gradient_state.enter_loader(loader)
        if not self.placed:
            return batch

        non_blocking = self.accelerator.dataloader_config.non_blocking
        return to_device(batch, self.accelerator.device, non_blocking)

    def ended(self, loader: EpochLoader) -> None:
        """See `BatchWatcher`."""
        self.accelerator.gradient_state.exit_loader(loader)
