"""Start several processes from a notebook, without torchrun."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .process import launched_world_size

if TYPE_CHECKING:
    from collections.abc import Iterator

_PRECISIONS = ("no", "fp16", "bf16")


def notebook_launcher(
    function: Callable[..., object],
    args: Sequence[object] = (),
    num_processes: int | None = None,
    mixed_precision: str = "no",
    use_port: int | str | None = None,
    master_addr: str = "127.0.0.1",
    node_rank: int = 0,
    num_nodes: int = 1,
    max_restarts: int = 0,
) -> list[Any]:
    """Run a function in several processes, from a notebook, and return its results.

    Works like `accelerate.notebook_launcher`, which returns nothing and has a fixed port by
    default.

    The processes are forked, so the function sees the notebook's variables; its changes to them
    stay in its process. Each joins the group when it makes its training arguments. If one fails,
    the others are terminated.

    Args:
        function: makes the training arguments, the model and the Trainer, and trains.
        args: positional arguments of the function.
        num_processes: number on this machine; by default the number of GPUs. With 1 the function is
            called in place.
        mixed_precision: "fp16" or "bf16" for arguments that set neither.
        use_port: rendezvous port on the first machine; required with several machines.
        master_addr: address of the first machine.
        node_rank: number of this machine.
        num_nodes: number of machines that call this function.
        max_restarts: times that all processes are restarted after a failure.

    Returns:
        The function's pickled results in the processes of this machine, by rank.

    Raises:
        ValueError: a number is out of range, or a launcher has started this process together with
            others.
        RuntimeError: CUDA is initialized in the notebook, so that no process can be forked.
        torch.distributed.elastic.multiprocessing.errors.ChildFailedError: A process failed; names
            rank and reason.
    """
    local_processes = _number_of(num_processes)
    _check(local_processes, mixed_precision, use_port, node_rank, num_nodes)
    with _precision_variable(mixed_precision):
        if local_processes * num_nodes == 1:
            return [function(*args)]
        from torch.distributed.elastic.utils.distributed import get_free_port
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        # Forks see the variables of the notebook; Windows cannot fork.
        start_method = "spawn"
        if "fork" in multiprocessing.get_all_start_methods():
            start_method = "fork"

        port = use_port or get_free_port()
        config = LaunchConfig(
            min_nodes=num_nodes,
            max_nodes=num_nodes,
            nproc_per_node=local_processes,
            run_id="notebook",
            rdzv_backend="static",
            rdzv_endpoint=f"{master_addr}:{port}",
            rdzv_configs={"rank": node_rank},
            max_restarts=max_restarts,
            monitor_interval=0.1,
            start_method=start_method,
        )
        results_by_rank = elastic_launch(config, _on_one_thread)(function, *args)
        return [results_by_rank[rank] for rank in sorted(results_by_rank)]


def _number_of(num_processes: int | None) -> int:
    """Return the number of processes on this machine, by default one for each GPU."""
    if num_processes is not None:
        return num_processes
    import torch

    if torch.cuda.device_count() == 0:
        raise ValueError(
            "num_processes=None starts a process for each GPU, but no GPU is visible. Pass a "
            "number."
        )
    return torch.cuda.device_count()


def _check(
    num_processes: int,
    mixed_precision: str,
    use_port: int | str | None,
    node_rank: int,
    num_nodes: int,
) -> None:
    """Check the arguments of `notebook_launcher`, and that this process can start others."""
    import torch
    import torch.distributed as dist

    if num_processes < 1:
        raise ValueError(f"num_processes={num_processes} must be 1 or more.")
    if mixed_precision not in _PRECISIONS:
        raise ValueError(
            f"mixed_precision={mixed_precision!r} is not known. Choose from: "
            f"{', '.join(_PRECISIONS)}."
        )
    if not 0 <= node_rank < num_nodes:
        raise ValueError(
            f"node_rank={node_rank} must be from 0 to num_nodes - 1, which is {num_nodes - 1}."
        )
    if num_nodes > 1 and use_port is None:
        raise ValueError(
            f"num_nodes={num_nodes} machines meet at one port: pass use_port, the same on all of "
            "them."
        )

    # Forked processes would inherit the rank of this one, or its CUDA context.
    if launched_world_size() > 1 or (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            "A launcher such as torchrun has started this process. Call the function directly."
        )
    if num_processes > 1 and torch.cuda.is_initialized():
        raise RuntimeError(
            "The notebook has used CUDA already. Restart it, and create models inside the function."
        )


@contextmanager
def _precision_variable(mixed_precision: str) -> Iterator[None]:
    """Set the variable by which `accelerate launch` passes the precision to training arguments."""
    name = "ACCELERATE_MIXED_PRECISION"
    previous_value = os.environ.get(name)
    if mixed_precision != "no":
        os.environ[name] = mixed_precision
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if previous_value is not None:
            os.environ[name] = previous_value


def _on_one_thread(function: Callable[..., object], *args: object) -> object:
    """Call the function with one thread, as torchrun does, because a fork may hang on threads that
    its parent has used.
    """
    import torch

    torch.set_num_threads(1)
    return function(*args)
