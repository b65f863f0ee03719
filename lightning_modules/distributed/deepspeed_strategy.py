"""DeepSpeed around a user's model instead of a LightningModule, on GPUs and on the CPU.

Under manual optimization the backward pass runs inside of Lightning's `training_step`. If that were the forward pass
of the engine, as Lightning has it by itself, stage 3 would take it for one long pass, and accumulation could not be
told from a step.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import torch
from torch import nn

from ..common.seeding import host_rng_untouched
from ..internals import lightning_internals as lightning_engine
from ..internals.lightning_import import DeepSpeedPrecision, DeepSpeedStrategy, Trainer, TrainerFn
from ..internals.precision import HALF
from .deepspeed_engine import is_engine, make_ready, release

_FOR_TRAINING = ("optimizer", "scheduler")


class ModelDeepSpeedStrategy(DeepSpeedStrategy):
    """As Lightning's `DeepSpeedStrategy`, but `train` and `shard` make the engine, around a model of the user.

    So it is made when there is an optimizer, and Lightning's hooks run outside of it. The configuration is DeepSpeed's
    own and complete; Lightning adds nothing to it.
    """

    engine: Any = None

    def setup_environment(self) -> None:
        """As that of DDP: Lightning's refuses all but GPUs."""
        super(DeepSpeedStrategy, self).setup_environment()

    def setup_distributed(self) -> None:
        """As that of DDP; one process is a group too."""
        if self.world_size == 1:
            make_ready(self.root_device.type)
        super(DeepSpeedStrategy, self).setup_distributed()
        os.environ.setdefault("LOCAL_RANK", str(self.local_rank))  # Lightning's sets it too: DeepSpeed reads it

    def setup(self, trainer: Trainer) -> None:
        """Make optimizer and schedule, and with them the engine; Lightning's makes it of the LightningModule."""
        assert self.accelerator is not None
        self.accelerator.setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()
        self.barrier()

    def setup_optimizers(self, trainer: Trainer) -> None:
        """As that of DDP: those of the module."""
        super(DeepSpeedStrategy, self).setup_optimizers(trainer)

    def model_sharded_context(self) -> Any:
        """Nothing: models are made when they are made, and taken apart by the engine."""
        return contextlib.nullcontext()

    @property
    def deepspeed_engine(self) -> Any:
        """The engine."""
        return self.engine

    def train(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Any:
        """The engine that trains a model.

        Args:
            model: the user's; an engine that it had is taken from it.
            optimizer: of its parameters; None where the configuration has one.

        Returns:
            The engine. Its schedule, where the configuration has one, is left to the caller to step.
        """
        made = self.take_up(self._engine(model, dict(self._config), optimizer))
        lightning_engine.configure_activation_checkpointing(self)
        return made

    def shard(self, model: nn.Module) -> Any:
        """The engine that has the parameters of a model in parts, and only evaluates.

        Args:
            model: the user's.
        """
        config = {key: value for key, value in self._config.items() if key not in _FOR_TRAINING}
        return self.take_up(self._engine(model, config, None))

    def take_up(self, engine: Any) -> Any:
        """Go on with an engine; that of an earlier run will do."""
        self.engine = engine
        if isinstance(self.precision_plugin, EnginePrecision):
            self.precision_plugin.model_is_cast = True
        return engine

    @property
    def _config(self) -> dict[str, Any]:
        assert isinstance(self.config, dict)
        return self.config

    def _engine(self, model: nn.Module, config: dict[str, Any], optimizer: torch.optim.Optimizer | None) -> Any:
        deepspeed = import_module("deepspeed")
        if is_engine(model):
            release(model)
            model = cast(nn.Module, model.module)
        with host_rng_untouched():
            made, _, _, _ = deepspeed.initialize(
                args=argparse.Namespace(device_rank=self.root_device.index or 0),
                config=config,
                model=model,
                model_parameters=[parameter for parameter in model.parameters() if parameter.requires_grad],
                optimizer=optimizer,
                dist_init_required=False,
            )
        return made


class EnginePrecision(DeepSpeedPrecision):
    """As Lightning's `DeepSpeedPrecision`, but for the engine of `ModelDeepSpeedStrategy`, which casts by itself.

    Args:
        precision: `32-true`, `bf16-mixed` or `16-mixed`.
        device: type of the device, such as `cuda`.
    """

    def __init__(self, precision: Any, device: str) -> None:
        super().__init__(precision)
        self.device = device
        self.model_is_cast = False

    def autocast_context_manager(self) -> contextlib.AbstractContextManager[Any]:
        """What forward passes run in: nothing, but for a model that is evaluated before there is an engine."""
        dtype = HALF.get(self.precision)
        if dtype is None or self.model_is_cast:
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=dtype)

    def convert_module(self, module: nn.Module) -> nn.Module:
        """The module as it is."""
        return module

    def convert_input(self, data: Any) -> Any:
        """The data as it is."""
        return data

    def backward(self, tensor: torch.Tensor, model: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """The engine's. The loss is that of the step already, so that accumulation does not divide it once more."""
        model.trainer.strategy.deepspeed_engine.backward(tensor, *args, scale_wrt_gas=False, **kwargs)

    def optimizer_step(self, optimizer: Any, model: Any, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """The engine's: gradients are clipped, the optimizer steps, gradients are gone."""
        closure()
        lightning_engine.call_hooks_before_step(self, model, optimizer)
        return model.trainer.strategy.deepspeed_engine.step()

    def train_step_context(self) -> Any:
        """Nothing: the engine casts the model."""
        return contextlib.nullcontext()

    val_step_context = test_step_context = predict_step_context = train_step_context
