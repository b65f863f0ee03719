"""What `Accelerator.prepare` returns: optimizers, schedules and sharded loaders.

Optimizers and schedules step at the end of an accumulation window.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ...lightning_modules.common.nested import to_device
from ...lightning_modules.data.iteration import can_be_rebuilt, has_batches
from ...lightning_modules.data.loaders import EpochLoader, rebuild_loader
from ...lightning_modules.optim import steps_in_backward
from ..arguments.rank_groups import sharding_options
from ..distributed.process import forwarded

if TYPE_CHECKING:
    from types import SimpleNamespace

    import torch
    from torch.optim.lr_scheduler import LRScheduler

    from ...lightning_modules.internals.precision import LossScaler
    from ..arguments import TrainingArguments
    from ..arguments.accelerator import AcceleratorConfig
    from .gradient_state import GradientState


class ReadableAccelerator(Protocol):
    """The members of `Accelerator` that prepared objects read."""

    args: TrainingArguments
    device: torch.device
    num_processes: int
    dataloader_config: SimpleNamespace
    split_batches: bool
    even_batches: bool
    gradient_state: GradientState
    sync_gradients: bool

    @property
    def in_run(self) -> bool:
        """Whether Lightning runs."""
        ...

    @property
    def scaler(self) -> LossScaler | None:
        """The loss scaler of fp16."""
        ...


class PreparedOptimizer(Optimizer):
    """Optimizer that steps at the end of a window, like accelerate's `AcceleratedOptimizer`.

    Gradients are cleared then, too. While Lightning runs it only delegates.

    Args:
        optimizer: the wrapped optimizer; other attributes are delegated to it.
        accelerator: tells when a window ends, and has the loss scaler of fp16.
    """

    state: Any = forwarded("optimizer.state", "See `torch.optim.Optimizer`.", writable=True)
    param_groups: Any = forwarded(
        "optimizer.param_groups", "See `torch.optim.Optimizer`.", writable=True
    )
    defaults: Any = forwarded("optimizer.defaults", "See `torch.optim.Optimizer`.", writable=True)
    add_param_group: Any = forwarded(
        "optimizer.add_param_group", "Add a group to the wrapped optimizer."
    )
    state_dict: Any = forwarded(
        "optimizer.state_dict", "Return the state of the wrapped optimizer."
    )
    load_state_dict: Any = forwarded(
        "optimizer.load_state_dict", "Load into the wrapped optimizer."
    )

    def __init__(self, optimizer: Optimizer, accelerator: ReadableAccelerator) -> None:
        # Without the constructor of torch: all state is in the wrapped optimizer.
        self.optimizer = optimizer
        self.accelerator = accelerator
        self.step_was_skipped = False

    def __getattr__(self, name: str) -> Any:
        """Delegate to the optimizer."""
        # An object that is being copied has no attributes yet.
        if name == "optimizer" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def train(self) -> None:
        """Switch an optimizer with two modes, such as a schedule-free one, to training."""
        switch = getattr(self.optimizer, "train", None)
        if switch is not None:
            switch()

    def eval(self) -> None:
        """Switch to evaluation, see `train`."""
        switch = getattr(self.optimizer, "eval", None)
        if switch is not None:
            switch()

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clear the gradients at the end of a window."""
        if set_to_none is None:
            set_to_none = True
        if self._ends_window:
            self.optimizer.zero_grad(set_to_none=set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step at the end of a window, through the loss scaler, which skips infinite gradients."""
        if not self._ends_window or steps_in_backward(self.optimizer):
            return None

        # Some optimizers have no parameter for a closure.
        arguments: list[Callable[[], Any]] = []
        if closure is not None:
            arguments.append(closure)

        # In a run, the precision plugin of Lightning applies the loss scaler.
        scaler = None
        if not self.accelerator.in_run:
            scaler = self.accelerator.scaler
        if scaler is None:
            return self.optimizer.step(*arguments)

        result = scaler.step(self.optimizer, *arguments)
        self.step_was_skipped = scaler.step_was_skipped
        scaler.update()
        return result

    @property
    def _ends_window(self) -> bool:
        return self.accelerator.in_run or self.accelerator.sync_gradients

    def __getstate__(self) -> dict[str, object]:
        """Return all attributes: torch keeps only those of a plain optimizer."""
        return dict(vars(self))

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)

    def __repr__(self) -> str:
        """Return the class name and the wrapped optimizer."""
        return f"{type(self).__name__}({self.optimizer!r})"


class PreparedScheduler:
    """Schedule that steps with the optimizer, like accelerate's `AcceleratedScheduler`.

    A schedule is written for the steps of a single process. With N processes there are N times
    fewer, so it steps N times.

    Args:
        scheduler: the wrapped schedule; other attributes are delegated to it.
        accelerator: see `PreparedOptimizer`.
        optimizers: the schedule does not step when one of these skipped its step.
    """

    def __init__(
        self,
        scheduler: LRScheduler,
        accelerator: ReadableAccelerator,
        optimizers: list[PreparedOptimizer],
    ) -> None:
        self.scheduler = scheduler
        self.accelerator = accelerator
        self.optimizers = optimizers
        self.skipped = 0
        """Steps within windows, which `adjust_scheduler` counts."""

    def __getattr__(self, name: str) -> Any:
        """Delegate to the schedule."""
        if name == "scheduler" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.scheduler, name)

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step once for each process if the optimizers stepped.

        Within a window nothing steps; with `adjust_scheduler` the step is counted.
        """
        accelerator = self.accelerator
        if accelerator.in_run:
            self.scheduler.step(*args, **kwargs)
            return
        if not accelerator.sync_gradients:
            if accelerator.gradient_state.adjust_scheduler:
                self.skipped += 1
            return
        if any(optimizer.step_was_skipped for optimizer in self.optimizers):
            return

        # With split batches, the steps are as many as those of a single process.
        steps = accelerator.num_processes
        if accelerator.split_batches:
            steps = 1
        for _ in range(steps):
            # A schedule such as OneCycleLR raises an error after its last step.
            total_steps = getattr(self.scheduler, "total_steps", math.inf)
            if self.scheduler.last_epoch + self.skipped < total_steps:
                self.scheduler.step(*args, **kwargs)


def prepared_loader(
    accelerator: ReadableAccelerator, loader: DataLoader, *, moves_batches: bool
) -> DataLoader:
    """Return the loader of `Accelerator.prepare_data_loader`.

    Args:
        accelerator: its processes share the data.
        loader: a torch DataLoader.
        moves_batches: move batches to the device.
    """
    if isinstance(loader, EpochLoader):
        return loader

    # A single process has nothing to share, and can keep a loader that iterates in its own way.
    is_single = accelerator.num_processes == 1
    if is_single and not (can_be_rebuilt(loader) and has_batches(loader)):
        return loader
    if not has_batches(loader):
        raise NotImplementedError(
            "A DataLoader with batch_size=None cannot be sharded. Set a batch_size."
        )

    # A namespace with the fields of the argument; scripts may have changed them.
    config = cast("AcceleratorConfig", accelerator.dataloader_config)
    sharing_options = sharding_options(accelerator.args, config, accelerator.even_batches)
    sharded_loader = rebuild_loader(loader, **sharing_options)
    sharded_loader.watcher = LoaderWatcher(accelerator, moves_batches=moves_batches)
    return sharded_loader


class LoaderWatcher:
    """Move batches to the device, and record the active loader in the accelerator."""

    def __init__(self, accelerator: ReadableAccelerator, *, moves_batches: bool) -> None:
        self.accelerator = accelerator
        self.moves_batches = moves_batches

    def on_batch(self, loader: EpochLoader, batch: object) -> object:
        """Make the loader the active one, and return the batch on the device."""
        self.accelerator.gradient_state.enter_loader(loader)
        if not self.moves_batches:
            return batch

        non_blocking = self.accelerator.dataloader_config.non_blocking
        return to_device(batch, self.accelerator.device, non_blocking)

    def on_end(self, loader: EpochLoader) -> None:
        """Remove the loader from the active ones."""
        self.accelerator.gradient_state.exit_loader(loader)
