"""Lightning strategy that wraps a user's model in DeepSpeed, on GPUs and on the CPU.

Lightning's own strategy wraps the LightningModule instead, so that `training_step` is the forward
pass of the engine. With manual optimization, the backward pass runs inside of `training_step`, and
ZeRO stage 3 could not distinguish gradient accumulation from an optimizer step.
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

from ..common.seeding import preserved_host_rng
from ..internals import lightning_internals as lightning_engine
from ..internals.fast_path import call_callback_hooks
from ..internals.lightning_import import DeepSpeedPrecision, DeepSpeedStrategy, Trainer, TrainerFn
from ..internals.precision import ForwardCasting
from .deepspeed_engine import begin_backward, is_engine, release
from .deepspeed_setup import prepare_deepspeed


class ModelDeepSpeedStrategy(DeepSpeedStrategy):
    """DeepSpeed strategy whose engine wraps the user's model. `train` or `shard` creates the
    engine.

    Unlike in Lightning's `DeepSpeedStrategy`, the engine is created after the optimizer, and
    Lightning's hooks run outside of it. The configuration is a complete DeepSpeed configuration.
    """

    engine: Any = None

    def setup_environment(self) -> None:
        """Set up as DDP does, because `DeepSpeedStrategy` only supports GPUs."""
        super(DeepSpeedStrategy, self).setup_environment()

    def setup_distributed(self) -> None:
        """Set up as DDP does, with a process group even for a single process."""
        if self.world_size == 1:
            prepare_deepspeed(self.root_device.type)
        super(DeepSpeedStrategy, self).setup_distributed()
        # DeepSpeed reads this variable.
        os.environ.setdefault("LOCAL_RANK", str(self.local_rank))

    def setup(self, trainer: Trainer) -> None:
        """Create the optimizer and the schedule, and with them the engine."""
        assert self.accelerator is not None
        self.accelerator.setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()
        self.barrier()

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Create the optimizers of the module as DDP does."""
        super(DeepSpeedStrategy, self).setup_optimizers(trainer)

    def model_sharded_context(self) -> Any:
        """Return a null context, because the engine shards models after they are created."""
        return contextlib.nullcontext()

    @property
    def deepspeed_engine(self) -> Any:
        """Return the engine."""
        return self.engine

    def train(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Any:
        """Create the engine that trains a model.

        Args:
            model: the user's model. Its previous engine is removed.
            optimizer: the optimizer of its parameters; None if the configuration defines it.

        Returns:
            The engine. The caller steps its schedule if the configuration defines one.
        """
        engine = self._make_engine(model, dict(self._config), optimizer)
        self.use_engine(engine)
        lightning_engine.configure_activation_checkpointing(self)
        return engine

    def shard(self, model: nn.Module) -> Any:
        """Create an engine that shards the parameters of a model for evaluation.

        It has no optimizer and no schedule.

        Args:
            model: the user's model.
        """
        config = dict(self._config)
        config.pop("optimizer", None)
        config.pop("scheduler", None)
        engine = self._make_engine(model, config, None)
        return self.use_engine(engine)

    def use_engine(self, engine: object) -> Any:
        """Use an existing engine, which may be that of an earlier run."""
        self.engine = engine
        if isinstance(self.precision_plugin, EnginePrecision):
            self.precision_plugin.model_is_cast = True
        return engine

    @property
    def _config(self) -> dict[str, object]:
        assert isinstance(self.config, dict)
        return self.config

    def _make_engine(
        self, model: nn.Module, config: dict[str, Any], optimizer: torch.optim.Optimizer | None
    ) -> object:
        deepspeed = import_module("deepspeed")
        if is_engine(model):
            release(model)
            model = cast(nn.Module, model.module)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        with preserved_host_rng():
            engine, _, _, _ = deepspeed.initialize(
                args=argparse.Namespace(device_rank=self.root_device.index or 0),
                config=config,
                model=model,
                model_parameters=trained,
                optimizer=optimizer,
                dist_init_required=False,
            )
        return engine


class EnginePrecision(ForwardCasting, DeepSpeedPrecision):
    """Precision plugin for an engine that casts the model itself.

    Args:
        precision: `32-true`, `bf16-mixed` or `16-mixed`.
        device: type of the device, such as `cuda`.
    """

    def __init__(self, precision: Any, device: str) -> None:
        super().__init__(precision)
        self.device = device
        self.model_is_cast = False

    def autocast_context_manager(self) -> contextlib.AbstractContextManager[Any]:
        """Return the autocast context of forward passes; null once the engine casts."""
        if self.model_is_cast:
            return contextlib.nullcontext()
        return super().autocast_context_manager()

    def backward(
        self, tensor: torch.Tensor, model: Any, optimizer: object, *args: object, **kwargs: object
    ) -> None:
        """Run the engine's backward pass. The loss is already scaled for gradient accumulation."""
        engine = model.trainer.strategy.deepspeed_engine
        begin_backward(engine)
        engine.backward(tensor, *args, scale_wrt_gas=False, **kwargs)

    def optimizer_step(
        self, optimizer: Any, model: Any, closure: Callable[[], object], **kwargs: object
    ) -> object:
        """Step the engine, which clips gradients, steps the optimizer and frees the gradients."""
        closure()
        call_callback_hooks(model.trainer, "on_before_optimizer_step", optimizer)
        return model.trainer.strategy.deepspeed_engine.step()
