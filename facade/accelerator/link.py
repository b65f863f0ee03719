"""What the accelerator knows of a run of Lightning while it lasts."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Protocol

from torch import nn

from ...lightning_modules.distributed import deepspeed_engine, sharding
from ...lightning_modules.models import inspection

_WHOLE = contextlib.nullcontext()


class Models(Protocol):
    """The Trainer, whose model may be wrapped by its run."""

    model: nn.Module
    model_wrapped: nn.Module


class RunLink:
    """The questions of the accelerator that only the strategy can answer, one small method each.

    Args:
        trainer: whose run it is.
        strategy: of Lightning; None where there is no run.
    """

    def __init__(self, trainer: Models, strategy: Any = None) -> None:
        self._host = weakref.ref(trainer)
        self._strategy = strategy

    @property
    def runs(self) -> bool:
        """Whether Lightning runs."""
        return self._strategy is not None

    def ended(self) -> RunLink | None:
        """What is left of it after the run: which wrapper the user's model has."""
        trainer = self._host()
        return None if trainer is None else RunLink(trainer)

    def is_trained(self, model: nn.Module) -> bool:
        """Whether this is the model of the run, or a wrapper of it."""
        trainer = self._host()
        return trainer is not None and inspection.unwrap_model(model) is inspection.unwrap_model(trainer.model)

    def to_call(self, model: nn.Module) -> nn.Module:
        """The sharded model, or the engine, around the user's own one; other models as they are."""
        trainer = self._host()
        return (
            model if trainer is None or not self.is_trained(model) else inspection.to_call(model, trainer.model_wrapped)
        )

    @property
    def sharded(self) -> nn.Module | None:
        """The wrapper that alone knows the norm of all gradients, `FullyShardedDataParallel`; None without one."""
        called = self._called
        return called if type(called).__name__ == "FullyShardedDataParallel" else None

    @property
    def engine(self) -> Any:
        """DeepSpeed's, where it clips gradients in its step, and nobody can before; None elsewhere."""
        called = self._called
        return called if deepspeed_engine.clips_gradients(called) else None

    @property
    def _called(self) -> nn.Module | None:
        trainer = self._host()
        wrapped = None if trainer is None else trainer.model_wrapped
        return None if trainer is None or wrapped is None else inspection.to_call(trainer.model, wrapped)

    @property
    def ddp(self) -> Any:
        """Lightning's `DistributedDataParallel`, in which the user's model is called; None without one."""
        wrapper = getattr(self._strategy, "model", None)
        return wrapper if hasattr(wrapper, "require_backward_grad_sync") else None

    @property
    def device_mesh(self) -> Any:
        """The processes as a grid; None where the strategy has none."""
        with contextlib.suppress(RuntimeError):  # it is not set up yet
            return getattr(self._strategy, "device_mesh", None)
        return None

    @property
    def splits_sequences(self) -> bool:
        """Whether processes share sequences."""
        return hasattr(self._strategy, "split_sequences")

    def split_sequences(self, buffers: Any, dims: Any, kept: Any) -> contextlib.AbstractContextManager[Any]:
        """Let each process have its part of tensors, see `ContextParallelStrategy`, or all where none are shared."""
        return self._strategy.split_sequences(buffers or (), dims or (), kept) if self.splits_sequences else _WHOLE

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Keep the gradients of the run's model in this process."""
        called = self.to_call(model)
        if sharding.is_sharded(called):
            return sharding.unsynchronised(called)
        block = getattr(self._strategy, "block_backward_sync", None)
        return contextlib.nullcontext() if block is None or self.ddp is None else block()
