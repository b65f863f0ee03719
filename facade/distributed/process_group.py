"""Join and leave the process group.

Joining resolves the address of rank 0, makes the group, and finds the local rank.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import multiprocessing
import os
import socket
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from functools import lru_cache
from importlib import import_module

import torch
import torch.distributed as dist

from ...lightning_modules.distributed.health import (
    OtherProcessError,
    has_failed,
    one_line,
    report_uncaught_errors,
)
from ...lightning_modules.internals.torch_names import default_store
from .launchers import Launch, port_from_job_name, port_in

logger = logging.getLogger(__name__)

_JOINED_VARIABLE = "LIGHTRAINER_JOINED"
"""Environment variable by which child processes see that they have inherited a rank."""
_SECONDS_TO_LEAVE = 5.0
"""Time limit for destroying a group that has lost a rank."""


def join(launch: Launch, backend: str, timeout: float) -> Launch:
    """Create the process group, and set torchrun's variables.

    The group is left when the interpreter ends.

    Args:
        launch: from the launcher's variables.
        backend: the backend of torch.distributed.
        timeout: seconds to wait for the other ranks, and after which a collective call that never
            completes fails.

    Returns:
        The launch with local rank and local size.

    Raises:
        RuntimeError: the address of rank 0 is missing, or this process has inherited its rank from
            one that has joined.
        ValueError: the backend is not available.
    """
    _look_up_address(launch)
    refuse_inherited_rank(launch)
    _use_one_thread_in_forks()
    os.environ["RANK"] = str(launch.rank)
    os.environ["WORLD_SIZE"] = str(launch.world_size)

    # Functions of this module, which DDP imports, have the default group as the default value of an
    # argument. Imported after the group is made, they would keep the group and its threads alive
    # beyond `leave`.
    import torch.distributed.nn.functional  # noqa: F401 - for its effect

    # torch itself checks the backends of plugins.
    built_in_backends = ("nccl", "gloo", "mpi", "xccl")
    available = [name for name in built_in_backends if dist.is_backend_available(name)]
    if backend in built_in_backends and backend not in available:
        raise ValueError(
            f"ddp_backend={backend!r} is not available: this build of torch.distributed supports "
            f"{', '.join(available)}."
        )

    with _explained_timeout(launch, timeout):
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
        launch = _with_local_rank(launch)
    os.environ["LOCAL_RANK"] = str(launch.local_rank)
    os.environ["LOCAL_WORLD_SIZE"] = str(launch.local_world_size)
    os.environ[_JOINED_VARIABLE] = f"{os.getpid()} {_rank_and_address(launch)}"

    # A gloo group whose threads outlive Python may end with "terminate called without an active
    # exception".
    atexit.register(leave)
    report_uncaught_errors()
    return launch


@contextlib.contextmanager
def _explained_timeout(launch: Launch, timeout: float) -> Iterator[None]:
    """Name process, address and timeout where torch waits for processes that do not join."""
    try:
        yield
    except dist.DistError as error:
        address = os.environ.get("MASTER_ADDR")
        port = os.environ.get("MASTER_PORT")
        raise OtherProcessError(
            f"Process {launch.rank} of {launch.world_size} could not join the others at "
            f"{address}:{port} with ddp_timeout={timeout:g}: {one_line(error)}"
        ) from error


def _look_up_address(launch: Launch) -> None:
    """Set MASTER_ADDR and MASTER_PORT where they are unset.

    On one machine the address is loopback; else Lightning's class for the launcher finds it.

    Raises:
        RuntimeError: MASTER_PORT is not a port, or the address cannot be found.
    """
    if os.environ.get("MASTER_PORT"):
        port_in("MASTER_PORT")

    if not os.environ.get("MASTER_ADDR"):
        launcher = _launcher_with_address(launch)
        if launch.local_world_size == launch.world_size:
            os.environ["MASTER_ADDR"] = "127.0.0.1"
        elif launcher is not None:
            from ...lightning_modules.distributed.cluster_environments import address_of_launcher

            address, port = address_of_launcher(launcher)
            os.environ["MASTER_ADDR"] = address
            os.environ.setdefault("MASTER_PORT", str(port))
        else:
            raise RuntimeError(
                f"{launch.launcher} started {launch.world_size} processes on several machines "
                "without an address. Set MASTER_ADDR to the machine of the first process, or "
                "install mpi4py."
            )

    # Only if neither the user nor the launcher has set it.
    os.environ.setdefault("MASTER_PORT", str(port_from_job_name()))


def _launcher_with_address(launch: Launch) -> str | None:
    """Return the launcher, if Lightning has a class that finds its address of rank 0."""
    if launch.launcher in ("SLURM", "LSF", "mpi4py"):
        return launch.launcher
    if launch.launcher != "MPI":
        return None

    # Lightning's class uses mpi4py to exchange host names.
    try:
        import_module("mpi4py.MPI")
    except ImportError:
        return None
    return "mpi4py"


def _with_local_rank(launch: Launch) -> Launch:
    """Find local rank and size by exchanging host names, if the launcher does not set them."""
    if launch.local_rank is not None and launch.local_world_size is not None:
        return launch

    # Over MPI there is no store, but its launchers set the local rank.
    store = default_store()
    if store is None:
        return launch.with_hosts([""] * launch.world_size)

    # Containers on different machines may have the same host name.
    host = f"{socket.gethostname()} {os.environ.get('SLURM_NODEID', '')}"
    store.set(f"lightrainer/host/{launch.rank}", host)
    hosts: list[str] = []
    for rank in range(launch.world_size):
        hosts.append(store.get(f"lightrainer/host/{rank}").decode())
    return launch.with_hosts(hosts)


def _rank_and_address(launch: Launch) -> str:
    """Identify a process by rank, world size and address of rank 0, which no two may share."""
    address = os.environ.get("MASTER_ADDR")
    port = os.environ.get("MASTER_PORT")
    return f"{launch.rank} {launch.world_size} {address}:{port}"


def refuse_inherited_rank(launch: Launch) -> None:
    """Raise if the launcher variables are inherited from a parent that has joined, because both
    would hang.

    Args:
        launch: from the variables.

    Raises:
        RuntimeError: the variables are inherited.
    """
    joined_pid, _, joined_as = os.environ.get(_JOINED_VARIABLE, "").partition(" ")
    if not joined_pid or int(joined_pid) == os.getpid():
        return
    if joined_as == _rank_and_address(launch):
        raise RuntimeError(
            f"This process was started by a process of {launch.launcher}, and has inherited its "
            f"rank (RANK={launch.rank}, WORLD_SIZE={launch.world_size}). Use torchrun or "
            "multiprocessing, not both, or unset WORLD_SIZE and RANK in this process."
        )


def _use_one_thread_in_forks() -> None:
    """Compute on one thread in a fork, as under torchrun.

    A fork may hang on threads that its parent has used.
    """
    # Python's option for spawned processes.
    is_spawned = "--multiprocessing-fork" in sys.orig_argv
    if multiprocessing.parent_process() is None or is_spawned:
        return

    # Lightning would choose more threads if the variable were not set.
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


@lru_cache(maxsize=4)
def warn_of_other_group(backend: str | None, ddp_backend: str | None, ddp_timeout: float) -> None:
    """Warn of arguments that have no effect because the script has made the process group itself.

    Args:
        backend: the backend of the group.
        ddp_backend: the value of the argument.
        ddp_timeout: the value of the argument, in seconds.
    """
    message = (
        "%s=%s has no effect: the process group exists already. Create the training arguments "
        "before it."
    )
    if ddp_backend not in (None, backend):
        logger.warning(message, "ddp_backend", ddp_backend)
    if ddp_timeout != 1800:
        logger.warning(message, "ddp_timeout", ddp_timeout)


def leave() -> None:
    """Destroy the process group, if there is one, so that its threads end before Python does."""
    if not dist.is_initialized():
        return

    # The last error keeps the frames in which it was raised alive, and with them the model.
    for name in ("last_exc", "last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)

    # Freeing a DistributedDataParallel in a reference cycle after its group may abort or hang.
    gc.collect()

    if not has_failed():
        dist.destroy_process_group()
        return

    # gloo waits indefinitely for a machine that it cannot reach.
    thread = threading.Thread(target=dist.destroy_process_group, daemon=True)
    thread.start()
    thread.join(_SECONDS_TO_LEAVE)
