"""What `Accelerator.prepare` returns: optimizers and schedules that step at the end of a window,
sharded loaders.
"""

from __future__ import annotations

import math
from typing import Any

from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ...lightning_modules.common.nested import to_device
from ...lightning_modules.data.batch_samplers import can_be_rebuilt, has_batches
from ...lightning_modules.data.loaders import EpochLoader, rebuild_loader
from ...lightning_modules.optim import steps_in_backward
from ..arguments.parallelism import ways_of_sharing
from ..distributed.process import forwarded


class PreparedOptimizer(Optimizer):
    """As `accelerate.optimizer.AcceleratedOptimizer`: steps and clears gradients at the end of an
    `accumulate` window.

    While Lightning runs it only delegates.

    Args:
        optimizer: the wrapped optimizer; other attributes are delegated to it.
        accelerator: gives the end of windows, and the loss scaler of fp16.
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

    def __init__(self, optimizer: Optimizer, accelerator: Any) -> None:
        self.optimizer = optimizer
        self.accelerator = accelerator
        self.step_was_skipped = False

    def __getattr__(self, name: str) -> Any:
        """Delegate to the optimizer."""
        if name == "optimizer" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def train(self) -> None:
        """Switch an optimizer with two modes, such as a schedule-free one, to training."""
        getattr(self.optimizer, "train", lambda: None)()

    def eval(self) -> None:
        """Switch to evaluation, see `train`."""
        getattr(self.optimizer, "eval", lambda: None)()

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clear the gradients at the end of a window."""
        if self._steps:
            self.optimizer.zero_grad(set_to_none=True if set_to_none is None else set_to_none)

    def step(self, closure: Any = None) -> Any:
        """Step at the end of a window, through the loss scaler, which skips infinite gradients."""
        if not self._steps or steps_in_backward(self.optimizer):
            return None
        arguments = () if closure is None else (closure,)
        scaler = None if self.accelerator.in_run else self.accelerator.scaler
        if scaler is None:
            return self.optimizer.step(*arguments)

        result = scaler.step(self.optimizer, *arguments)
        self.step_was_skipped = scaler.step_was_skipped
        scaler.update()
        return result

    @property
    def _steps(self) -> bool:
        return self.accelerator.in_run or self.accelerator.sync_gradients

    def __getstate__(self) -> dict[str, Any]:
        """Return all attributes: torch keeps only those of a plain optimizer."""
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def __repr__(self) -> str:
        """Return the class name and the wrapped optimizer."""
        return f"{type(self).__name__}({self.optimizer!r})"


class PreparedScheduler:
    """As `accelerate.scheduler.AcceleratedScheduler`: steps with the optimizer, once for each
    process.

    A schedule is written for the steps of a single process; with N processes there are N times
    fewer.

    Args:
        scheduler: the wrapped schedule; other attributes are delegated to it.
        accelerator: see `PreparedOptimizer`.
        optimizers: the schedule does not step when one of these skipped its step.
    """

    def __init__(
        self, scheduler: Any, accelerator: Any, optimizers: list[PreparedOptimizer]
    ) -> None:
        self.scheduler = scheduler
        self.accelerator = accelerator
        self.optimizers = optimizers
        self.skipped = 0  # steps of micro-batches that `adjust_scheduler` counts

    def __getattr__(self, name: str) -> Any:
        """Delegate to the schedule."""
        if name == "scheduler" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.scheduler, name)

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step once for each process if the optimizers stepped; within a window only count, if
        so configured.
        """
        accelerator = self.accelerator
        if accelerator.in_run:
            self.scheduler.step(*args, **kwargs)
        elif not accelerator.sync_gradients:
            if accelerator.gradient_state.adjust_scheduler:
                self.skipped += 1
        elif not any(optimizer.step_was_skipped for optimizer in self.optimizers):
            for _ in range(1 if accelerator.split_batches else accelerator.num_processes):
                if self.scheduler.last_epoch + self.skipped < getattr(
                    self.scheduler, "total_steps", math.inf
                ):
                    self.scheduler.step(*args, **kwargs)


def prepared_loader(accelerator: Any, loader: DataLoader, *, placed: bool) -> DataLoader:
    """Return the loader of `Accelerator.prepare_data_loader`.

    Args:
        accelerator: its processes share the data.
        loader: a torch DataLoader.
        placed: move batches to the device.
    """
    if isinstance(loader, EpochLoader):
        return loader

    # Iterations that are not torch's are left alone where nothing has to be shared.
    is_alone = accelerator.num_processes == 1
    if is_alone and not (can_be_rebuilt(loader) and has_batches(loader)):
        return loader
    if not has_batches(loader):
        raise NotImplementedError(
            "A DataLoader with batch_size=None cannot be sharded: give it a batch_size."
        )

    ways = ways_of_sharing(
        accelerator.args, accelerator.dataloader_config, accelerator.even_batches
    )
    rebuilt = rebuild_loader(loader, **ways)
    rebuilt.watcher = _Watcher(accelerator, placed=placed)
    return rebuilt


class _Watcher:
    """Move batches to the device, and record the active loader in the accelerator."""

    def __init__(self, accelerator: Any, *, placed: bool) -> None:
        self.accelerator = accelerator
        self.placed = placed

    def on_batch(self, loader: EpochLoader, batch: Any) -> Any:
        """See `BatchWatcher`."""
        self.accelerator.gradient_state.enter_loader(loader)
        if not self.placed:
            return batch

        non_blocking = self.accelerator.dataloader_config.non_blocking
        return to_device(batch, self.accelerator.device, non_blocking)

    def on_end(self, loader: EpochLoader) -> None:
        """See `BatchWatcher`."""
        self.accelerator.gradient_state.exit_loader(loader)
