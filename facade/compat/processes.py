"""Gather tensors and order work between the processes of a script."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ...lightning_modules.common.nested import mapping_like
from ..arguments.enums import ParallelMode
from .nested import atleast_1d


def is_main_process(local_rank: int) -> bool:
    """As `transformers.trainer_utils.is_main_process`: True for rank 0, and for -1, a single process."""
    return local_rank in (-1, 0)


def total_processes_number(local_rank: int) -> int:
    """As `transformers.trainer_utils.total_processes_number`; 1 for a rank of -1."""
    return 1 if local_rank == -1 else dist.get_world_size()


@contextlib.contextmanager
def torch_distributed_zero_first(local_rank: int) -> Iterator[None]:
    """As `transformers.trainer_pt_utils.torch_distributed_zero_first`: rank 0 goes first, the others wait for it."""
    if not is_main_process(local_rank):
        dist.barrier()
    yield
    if local_rank == 0:
        dist.barrier()


@contextlib.contextmanager
def suppress_progress_bars() -> Iterator[None]:
    """As `transformers.trainer_utils.suppress_progress_bars`: hide the progress bars of huggingface_hub."""
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def distributed_concat(tensor: Any, num_total_examples: int | None = None) -> Any:
    """As `transformers.trainer_pt_utils.distributed_concat`: concatenate the tensors of all ranks.

    Args:
        tensor: of the same shape on all ranks; also several in lists, tuples or mappings.
        num_total_examples: rows to keep.
    """
    if isinstance(tensor, (list, tuple)):
        return type(tensor)(distributed_concat(part, num_total_examples) for part in tensor)
    if isinstance(tensor, Mapping):
        parts = {key: distributed_concat(part, num_total_examples) for key, part in tensor.items()}
        return mapping_like(tensor, parts)
    own = atleast_1d(tensor).contiguous()
    gathered = [torch.empty_like(own) for _ in range(_processes())]
    dist.all_gather(gathered, own)
    return torch.cat(gathered)[:num_total_examples]


def distributed_broadcast_scalars(
    scalars: Sequence[float],
    num_total_examples: int | None = None,
    device: torch.device | str | None = torch.device("cuda"),  # noqa: B008 - the reference's default
) -> torch.Tensor:
    """As `transformers.trainer_pt_utils.distributed_broadcast_scalars`: concatenate the numbers of all ranks."""
    return distributed_concat(torch.tensor(scalars, device=device), num_total_examples)


def _processes() -> int:
    if not dist.is_initialized():
        raise AssertionError("There is one process only, and nothing to gather from others.")
    return dist.get_world_size()


def nested_gather(tensors: Any, parallel_mode: ParallelMode, name: str | None = None) -> Any:
    """As `transformers.trainer_pt_utils.nested_gather`: gather from all ranks.

    Args:
        tensors: tensors, also in lists, tuples or mappings; None stays None.
        parallel_mode: that of the training arguments.
        name: not used.
    """
    if tensors is not None and parallel_mode == ParallelMode.DISTRIBUTED:
        return distributed_concat(tensors)
    return tensors
