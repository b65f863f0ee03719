"""A training under DeepSpeed: its engine comes with the optimizer, and steps where another optimizer would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch.optim.lr_scheduler import LRScheduler

from ...lightning_modules.distributed.deepspeed_engine import clips_gradients, norm_of_last_step, trains
from ...lightning_modules.models.inspection import to_call
from ..strategies.deepspeed import DeepSpeedPlan

if TYPE_CHECKING:
    from ...lightning_modules.distributed.deepspeed_strategy import ModelDeepSpeedStrategy
    from .trainer_module import TrainerModule


def asked_for(trainer: Any) -> bool:
    """Whether the arguments of a Trainer ask for DeepSpeed."""
    return isinstance(trainer.plan.strategy, DeepSpeedPlan)


def optimizers(module: TrainerModule) -> tuple[Any, Any]:
    """Make optimizer, engine and schedule; what the configuration has sections for is DeepSpeed's own.

    Returns:
        The optimizer inside of the engine, and the schedule if it is one of torch, for Lightning to know.
    """
    trainer, strategy = module.facade, cast("ModelDeepSpeedStrategy", module.lightning_trainer.strategy)
    cast(DeepSpeedPlan, trainer.plan.strategy).require_filled()
    config = cast("dict[str, Any]", strategy.config)
    steps, own = module.length.max_steps, {name for name in ("optimizer", "scheduler") if config.get(name)}
    trainer.optimizer = None  # that of an earlier run has its parts, not the parameters
    if not own:
        trainer.create_optimizer_and_scheduler(num_training_steps=steps)
    elif "optimizer" not in own:
        trainer.create_optimizer()
    engine = strategy.train(to_call(trainer.model, trainer.model_wrapped), trainer.optimizer)
    trainer.optimizer = engine.basic_optimizer
    schedule, engine.lr_scheduler = engine.lr_scheduler, None  # the run steps it
    if "scheduler" in own:
        trainer.lr_scheduler, trainer._created_lr_scheduler = schedule, True
    elif "optimizer" in own:
        trainer.create_scheduler(num_training_steps=steps, optimizer=engine.basic_optimizer)
    trainer.model_wrapped = trainer.deepspeed = module.model = engine
    known = isinstance(trainer.lr_scheduler, LRScheduler)
    return trainer.optimizer, trainer.lr_scheduler if known else None


class EngineSteps:
    """What a run has to tell an engine, and to ask of it; for models without one it does nothing.

    Args:
        model: what the run calls.
    """

    def __init__(self, model: Any) -> None:
        self.engine = model if trains(model) else None
        self.clips = clips_gradients(model)

    def begin_batch(self, *, steps: bool) -> None:
        """Say whether the micro-batch that follows is the last one before a step."""
        if self.engine is not None:
            self.engine.set_gradient_accumulation_boundary(steps)

    def norm(self) -> torch.Tensor | float:
        """Of the gradients of the last step, before they were clipped."""
        return norm_of_last_step(self.engine)
