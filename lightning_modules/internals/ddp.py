"""DDP strategy that wraps the user's model instead of the LightningModule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .lightning_import import DDPStrategy, Trainer


class ModelDDPStrategy(DDPStrategy):
    """Lightning's `DDPStrategy`, but with the wrapper around the model in the LightningModule.

    Lightning runs `training_step` inside of the forward pass of `DistributedDataParallel`. A
    backward pass there is only synchronised if it is `manual_backward`, and several of them raise.
    If only the model is wrapped, a step may have forward and backward passes in any order.

    Args:
        wrap: wraps the model. Called with the device when training begins, after the module was
            moved to it.
        options: options of Lightning's `DDPStrategy`.
    """

    def __init__(self, wrap: Callable[[torch.device], object], **options: Any) -> None:
        super().__init__(**options)
        self._wrap = wrap

    def configure_ddp(self) -> None:
        """Wrap the model, not the LightningModule, whose steps are called directly."""
        self._wrap(self.root_device)

    def setup(self, trainer: Trainer) -> None:
        """Set up a training as Lightning does, and an evaluation without changing the model.

        For an evaluation Lightning copies all weights and buffers of rank 0 to the other ranks.
        """
        if trainer.training:
            super().setup(trainer)
            return

        assert self.accelerator is not None
        assert self.model is not None
        self.accelerator.setup(trainer)
        self.precision_plugin.convert_module(self.model)
        self.model_to_device()
        self.setup_precision_plugin()
