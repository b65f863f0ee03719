"""Detect and explain out-of-memory errors, and raise them on all ranks of a training."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from ..common.collectives import broadcast_tensors
from ..distributed.gradient_averages import average_gradients

# Messages of backends that do not raise `torch.OutOfMemoryError`.
_SIGNS = (
    " out of memory.",
    "CUDA error: out of memory",
    "MPS backend out of memory",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "PT_DEVMEM Allocation failed",
)


class OutOfMemoryOnOtherRankError(torch.OutOfMemoryError):
    """Raised on ranks that did not run out of memory themselves when another rank did."""

    is_shared = True


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error indicates that memory ran out, so that a smaller batch may help.

    Works like `accelerate.utils.should_reduce_batch_size`.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def explain(error: Exception, explanation: Callable[[], str]) -> None:
    """Add a note to an out-of-memory error, unless an inner block has already added one."""
    if is_out_of_memory(error) and not getattr(error, "is_explained", False):
        error.add_note(explanation())
        vars(error)["is_explained"] = True


def shapes_of(inputs: object) -> str:
    """Return the tensors of a batch with their shapes, such as `input_ids 4 x 128`."""
    named_parts = inputs.items() if isinstance(inputs, Mapping) else enumerate(_listed(inputs))
    shapes: list[str] = []
    for name, part in named_parts:
        if isinstance(part, torch.Tensor):
            shape = " x ".join(map(str, part.shape)) or "a number"
            shapes.append(f"{name} {shape}")
    return ", ".join(shapes) or "unknown"


def release_memory() -> None:
    """Collect garbage and empty the memory caches of the devices."""
    gc.collect()
    for backend in (torch.cuda, torch.xpu):
        if backend.is_available():
            backend.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()


class OutOfMemoryConsensus:
    """Raise an out-of-memory error of one data-parallel rank on all ranks, to prevent a deadlock.

    A rank that fails stores the error and skips the rest of its work. All ranks call `settle` at
    the same points, which raises the error on all of them. Gradients cannot be averaged in the
    backward pass, which may fail on some ranks; `settle` averages them when all ranks have
    succeeded.

    Args:
        device: device of the collective; None in a single process, in which errors are raised
            immediately.
        shares_buffers: whether buffers are broadcast from rank 0 at the start of each step.

    Attributes:
        is_active: whether there are other ranks; False in a single process.
        failure: the stored error, until `settle` raises it.
    """

    def __init__(self, device: torch.device | None, *, shares_buffers: bool = True) -> None:
        self.device = device
        self.shares_buffers = shares_buffers
        self.is_active = device is not None
        self.failure: Exception | None = None

    def begin_step(self, buffers: Iterable[torch.Tensor]) -> None:
        """Broadcast buffers as `DistributedDataParallel` does in a forward pass.

        It is done here because a rank that fails may not reach its forward pass.
        """
        if self.shares_buffers:
            broadcast_tensors(buffers)

    def store(self, error: Exception) -> bool:
        """Store an out-of-memory error for `settle`; return whether it was stored.

        Other errors, and errors in a single process, are not stored.
        """
        if not self.is_active or not is_out_of_memory(error):
            return False
        self.failure = error
        return True

    def settle(self, parameters: Iterable[torch.Tensor] = ()) -> None:
        """Average the gradients over all ranks, or raise the stored error on all of them.

        Args:
            parameters: the parameters whose gradients to average.

        Raises:
            torch.OutOfMemoryError, RuntimeError: the stored error, with the attribute `is_shared`
                set to True.
            OutOfMemoryOnOtherRankError: the error is stored on another rank.
        """
        # A single collective determines whether any rank has failed, and which parameters have
        # gradients on any rank.
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        has_gradient = [parameter.grad is not None for parameter in trainable]
        flags = torch.tensor(
            [self.failure is not None, *has_gradient], dtype=torch.int32, device=self.device
        )
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        any_failed, *any_has_gradient = flags.tolist()

        if any_failed:
            failure = self.failure
            self.failure = None
            if failure is None:
                failure = OutOfMemoryOnOtherRankError("Another process ran out of memory.")
            # Tell callers that all ranks raise the error here, so that they can restart together.
            vars(failure)["is_shared"] = True
            raise failure
        average_gradients(itertools.compress(trainable, any_has_gradient))


def _listed(inputs: object) -> list[Any]:
    return list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
