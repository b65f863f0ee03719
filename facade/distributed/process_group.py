"""Join and leave the process group: resolve the address of rank 0, make the group, find the
local rank.
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
from .launchers import Launch, port_in, port_of_job

logger = logging.getLogger(__name__)

_MARK = "LIGHTRAINER_JOINED"
_SECONDS_TO_LEAVE = 5.0
"""Time limit for destroying a group that has lost a rank."""


def join(launch: Launch, backend: str, timeout: float) -> Launch:
    """Make the process group, which is left when the interpreter ends, and set the variables of
    torchrun.

    Args:
        launch: from the launcher's variables.
        backend: of torch.distributed.
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
    refuse_inherited_place(launch)
    _use_one_thread_in_forks()
    os.environ["RANK"] = str(launch.rank)
    os.environ["WORLD_SIZE"] = str(launch.world_size)

    # Its functions bind the default group at import as the default of an argument, and DDP imports
    # it: imported after the group is made, it would keep the group and its threads alive beyond
    # `leave`.
    import torch.distributed.nn.functional  # noqa: F401 - for its effect

    # torch checks the backends of plugins itself.
    own_backends = ("nccl", "gloo", "mpi", "xccl")
    available = [name for name in own_backends if dist.is_backend_available(name)]
    if backend in own_backends and backend not in available:
        raise ValueError(
            f"ddp_backend={backend!r} is not available: this build of torch.distributed supports "
            f"{', '.join(available)}."
        )
    with _explained_timeout(launch, timeout):
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
        launch = _with_local_rank(launch)
    os.environ["LOCAL_RANK"] = str(launch.local_rank)
    os.environ["LOCAL_WORLD_SIZE"] = str(launch.local_world_size)
    os.environ[_MARK] = f"{os.getpid()} {_place(launch)}"

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
    """Set MASTER_ADDR and MASTER_PORT, as loopback on one machine or from Lightning's class for
    the launcher.
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
                "without an address. Set MASTER_ADDR to the machine of the first one, or install "
                "mpi4py."
            )
    os.environ.setdefault("MASTER_PORT", str(port_of_job()))


def _launcher_with_address(launch: Launch) -> str | None:
    """Return the launcher by whose name Lightning finds the address of rank 0; None if it has no
    class for it.
    """
    if launch.launcher in ("SLURM", "LSF", "mpi4py"):
        return launch.launcher
    if launch.launcher != "MPI":
        return None

    # The host names are exchanged by MPI itself.
    try:
        import_module("mpi4py.MPI")
    except ImportError:
        return None
    return "mpi4py"


def _with_local_rank(launch: Launch) -> Launch:
    """Find local rank and size by exchanging host names, if the launcher does not set them."""
    if launch.local_rank is not None and launch.local_world_size is not None:
        return launch

    # MPI has no store, and sets them.
    store = default_store()
    if store is None:
        return launch.placed([""] * launch.world_size)
    host = f"{socket.gethostname()} {os.environ.get('SLURM_NODEID', '')}"
    store.set(f"lightrainer/host/{launch.rank}", host)
    return launch.placed(
        [store.get(f"lightrainer/host/{rank}").decode() for rank in range(launch.world_size)]
    )


def _place(launch: Launch) -> str:
    return (
        f"{launch.rank} {launch.world_size} "
        f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    )


def refuse_inherited_place(launch: Launch) -> None:
    """Refuse to join with the variables of a parent that has joined: both would hang.

    Args:
        launch: from the variables.

    Raises:
        RuntimeError: The variables are inherited.
    """
    pid, _, place = os.environ.get(_MARK, "").partition(" ")
    if pid and int(pid) != os.getpid() and place == _place(launch):
        raise RuntimeError(
            f"This process was started by one of {launch.launcher}, and has inherited its place "
            f"(RANK={launch.rank}, WORLD_SIZE={launch.world_size}). Use torchrun or "
            "multiprocessing, not both, or unset WORLD_SIZE and RANK in it."
        )


def _use_one_thread_in_forks() -> None:
    """Compute on one thread in a fork, as under torchrun; a fork may hang on threads that its
    parent has used.
    """
    spawned = "--multiprocessing-fork" in sys.orig_argv  # Python's option for spawned processes
    if multiprocessing.parent_process() is not None and not spawned:
        os.environ["OMP_NUM_THREADS"] = "1"  # without it Lightning would choose more
        torch.set_num_threads(1)


@lru_cache(maxsize=4)
def warn_of_other_group(backend: str | None, asked: str | None, timeout: float) -> None:
    """Warn of arguments that have no effect, as the script has made the process group itself.

    Args:
        backend: of the group.
        asked: the argument `ddp_backend`.
        timeout: the argument `ddp_timeout`, in seconds.
    """
    message = (
        "%s=%s has no effect: the process group was made before. Make the training arguments first."
    )
    if asked not in (None, backend):
        logger.warning(message, "ddp_backend", asked)
    if timeout != 1800:
        logger.warning(message, "ddp_timeout", timeout)


def leave() -> None:
    """Destroy the process group, if there is one, so that its threads end before Python does."""
    if not dist.is_initialized():
        return

    # The last error holds the frames in which it was raised, and with them the model.
    for name in ("last_exc", "last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    # A DistributedDataParallel in a reference cycle that is freed after its group may abort or
    # hang.
    gc.collect()

    if not has_failed():
        dist.destroy_process_group()
        return

    # gloo waits without end for a machine that it cannot reach.
    leaving = threading.Thread(target=dist.destroy_process_group, daemon=True)
    leaving.start()
    leaving.join(_SECONDS_TO_LEAVE)
