"""Optimizers and schedules of own loops, which step at the end of a window only."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from ...lightning_modules.optim import steps_in_backward


def _of_optimizer(name: str) -> property:
    """An attribute that is kept by the optimizer that was prepared."""
    return property(
        lambda self: getattr(self.optimizer, name), lambda self, value: setattr(self.optimizer, name, value)
    )


class PreparedOptimizer(Optimizer):
    """As `accelerate.optimizer.AcceleratedOptimizer`: steps and clears gradients where a window of `accumulate` ends.

    While Lightning runs, it is the optimizer that it was made of.

    Args:
        optimizer: is stepped; what this does not have itself is its.
        accelerator: knows where windows end, and the loss scale of fp16.
    """

    state: Any = _of_optimizer("state")
    param_groups: Any = _of_optimizer("param_groups")
    defaults: Any = _of_optimizer("defaults")

    def __init__(self, optimizer: Optimizer, accelerator: Any) -> None:
        self.optimizer = optimizer
        self.accelerator = accelerator
        self.step_was_skipped = False

    def __getattr__(self, name: str) -> Any:
        """What the optimizer has beside this."""
        if name == "optimizer" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See `torch.optim.Optimizer`."""
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """That of the optimizer."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the optimizer."""
        self.optimizer.load_state_dict(state_dict)

    def train(self) -> None:
        """Tell an optimizer that has two modes, such as those without a schedule."""
        getattr(self.optimizer, "train", lambda: None)()

    def eval(self) -> None:
        """See `train`."""
        getattr(self.optimizer, "eval", lambda: None)()

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clear the gradients, but in the middle of a window."""
        if self._steps:
            self.optimizer.zero_grad(set_to_none=True if set_to_none is None else set_to_none)

    def step(self, closure: Any = None) -> Any:
        """Step, but in the middle of a window; without the loss scale, and not with infinite gradients."""
        if not self._steps or steps_in_backward(self.optimizer):
            return None
        scaler = None if self.accelerator.in_run else self.accelerator.scaler
        if scaler is None:
            return self.optimizer.step() if closure is None else self.optimizer.step(closure)
        result = scaler.step(self.optimizer) if closure is None else scaler.step(self.optimizer, closure)
        self.step_was_skipped = scaler.step_was_skipped
        scaler.update()
        return result

    @property
    def _steps(self) -> bool:
        return self.accelerator.in_run or self.accelerator.sync_gradients

    def __getstate__(self) -> dict[str, Any]:
        """All of it: torch leaves out what a plain optimizer does not need."""
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def __repr__(self) -> str:
        """That of the optimizer."""
        return f"{type(self).__name__}({self.optimizer!r})"


class PreparedScheduler:
    """As `accelerate.scheduler.AcceleratedScheduler`: steps with the optimizer, once for each process.

    For schedules are made for the batches of one process, and with several there are so many fewer steps.

    Args:
        scheduler: is stepped; what this does not have itself is its.
        accelerator: see `PreparedOptimizer`.
        optimizers: it waits for those, where they skip a step.
    """

    def __init__(self, scheduler: Any, accelerator: Any, optimizers: list[PreparedOptimizer]) -> None:
        self.scheduler = scheduler
        self.accelerator = accelerator
        self.optimizers = optimizers

    def __getattr__(self, name: str) -> Any:
        """What the schedule has beside this."""
        if name == "scheduler" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.scheduler, name)

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step as often as there are processes, if the optimizer did; in the middle of a window only be counted."""
        accelerator = self.accelerator
        if accelerator.in_run:
            self.scheduler.step(*args, **kwargs)
        elif not accelerator.sync_gradients:
            if accelerator.gradient_state.adjust_scheduler:
                self.scheduler._step_count += 1
        elif not any(optimizer.step_was_skipped for optimizer in self.optimizers):
            for _ in range(1 if accelerator.split_batches else accelerator.num_processes):
                if self.scheduler._step_count <= getattr(self.scheduler, "total_steps", self.scheduler._step_count):
                    self.scheduler.step(*args, **kwargs)
