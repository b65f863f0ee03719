"""Apply arguments that change how the model computes: kernels, compilation and activation
checkpointing.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...lightning_modules.common.weak_attribute import WeakAttribute
from ...lightning_modules.models.activation_checkpointing import enable_activation_checkpointing
from ...lightning_modules.models.liger import apply_liger_kernels
from ...lightning_modules.models.neftune import neftune_hook
from ...lightning_modules.models.special_tokens import align_special_tokens
from ...lightning_modules.models.underflow_overflow import DebugUnderflowOverflow
from ..arguments.derived import checkpointing
from ..arguments.enums import DebugOption

if TYPE_CHECKING:
    from .. import Trainer

logger = logging.getLogger(__name__)


class ModelPreparation:
    """Apply the arguments that change how the model computes.

    Args:
        trainer: the Trainer.
    """

    trainer = WeakAttribute["Trainer"]()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        # Models with permanent changes. Weak references, because a search must be able to free
        # models.
        self._compiled: weakref.ref[nn.Module] | None = None
        self._with_liger: weakref.ref[nn.Module] | None = None

    def replace_layers(self) -> None:
        """Permanently apply Liger kernels to a model, once, before its signature is inspected."""
        args = self.trainer.args
        model = self.trainer.model
        if args.use_liger_kernel and not _refers_to(self._with_liger, model):
            apply_liger_kernels(model, args.liger_kernel_config)
            self._with_liger = weakref.ref(model)

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Prepare the model within the block; temporary hooks are removed afterwards."""
        trainer = self.trainer
        args = trainer.args
        model = trainer.model

        # Trained float16 weights are incompatible with fp16, except in a sharded model.
        if args.mixed_precision == "fp16" and trainer._lightrainer.strategy.sharded_model is None:
            _require_scalable_weights(model)
        if args.torch_empty_cache_steps is not None and args.device.type == "cpu":
            logger.warning(
                "torch_empty_cache_steps=%s has no effect here: torch has no memory cache for the "
                "CPU.",
                args.torch_empty_cache_steps,
            )

        with contextlib.ExitStack() as at_end:
            if trainer.neftune_noise_alpha is not None:
                trainer.neftune_hook_handle = neftune_hook(model, trainer.neftune_noise_alpha)
                at_end.callback(trainer.neftune_hook_handle.remove)
            if DebugOption.UNDERFLOW_OVERFLOW in (args.debug or ()):
                at_end.callback(DebugUnderflowOverflow(model).remove)
            is_enabled, settings = checkpointing(args)
            if is_enabled:
                at_end.callback(enable_activation_checkpointing(model, **settings))
            self._compile()
            align_special_tokens(model, trainer.processing_class)
            yield

    def _compile(self) -> None:
        """Compile the model in place, so that the object and its parameter names stay the same."""
        args = self.trainer.args
        model = self.trainer.model
        if args.torch_compile and not _refers_to(self._compiled, model):
            model.compile(
                backend=args.torch_compile_backend,
                mode=args.torch_compile_mode,
                **args.compile_options,
            )
            self._compiled = weakref.ref(model)


def _refers_to(reference: weakref.ref[nn.Module] | None, model: nn.Module) -> bool:
    return reference is not None and reference() is model


def _require_scalable_weights(model: nn.Module) -> None:
    trainable = 0
    half = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            trainable += 1
            if parameter.dtype is torch.float16:
                half.append(name)
    if half:
        raise ValueError(
            f"fp16=True scales the loss, but {len(half)} of {trainable} trained parameters are "
            f"float16 (the first is {half[0]!r}), and their gradients cannot be unscaled. Call "
            "model.float()."
        )
