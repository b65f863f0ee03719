"""Determine rank, world size and device of this process.

Only this module reads the launch (`launchers.py`) for the rest of the facade.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ...lightning_modules.common.libraries import loaded
from .launchers import Launch, find_launch, is_batch_script, number_in, whole_number
from .xla_device import xla_device, xla_is_chosen

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


def forwarded(path: str, doc: str, *, writable: bool = False) -> Any:
    """Return a property that is an attribute of another object.

    Args:
        path: such as `args.device`.
        doc: its docstring.
        writable: setting it sets that attribute.
    """
    owner, _, name = path.rpartition(".")

    def write(self: Any, value: Any) -> None:
        setattr(attrgetter(owner)(self), name, value)

    return property(attrgetter(path), write if writable else None, doc=doc)


@dataclass(frozen=True)
class ProcessEnvironment:
    """As the part of `accelerate.PartialState` that training arguments show, but a plain frozen value.

    Attributes:
        rank: Number of this process among all, from 0.
        local_rank: Number of this process among those of its machine, from 0.
        world_size: Number of processes.
        local_world_size: Number of processes on this machine.
        device: Device of this process.
        backend: Name of the torch.distributed backend; None without a process group.
        launcher: Such as `torchrun` or `SLURM`; None without one, or if the script made the process group.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    device: "torch.device"
    backend: str | None = None
    launcher: str | None = None

    num_processes = forwarded("world_size", "The reference's name of `world_size`.")
    process_index = forwarded("rank", "The reference's name of `rank`.")
    local_process_index = forwarded("local_rank", "The reference's name of `local_rank`.")

    @property
    def is_main_process(self) -> bool:
        """True on rank 0."""
        return self.rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """True on local rank 0."""
        return self.local_rank == 0

    @property
    def distributed_type(self) -> str:
        """`NO`, `MULTI_CPU`, `MULTI_GPU` or `XLA`, as the members of the reference's enumeration read."""
        if self.device.type == "xla":
            return "XLA"
        if self.world_size == 1:
            return "NO"
        return "MULTI_CPU" if self.device.type == "cpu" else "MULTI_GPU"


@contextlib.contextmanager
def others_wait(first: bool, processes: int) -> Iterator[None]:
    """Run the block on the first process, then, even if it fails there, on the others.

    Args:
        first: True on the process that goes first.
        processes: the world size; a single process does not wait.
    """
    if processes == 1:
        yield
        return
    import torch.distributed as dist

    if not first:
        dist.barrier()
    try:
        yield
    finally:
        if first:
            dist.barrier()


# By process id, since a fork may have another launch. Cached, since device properties are read in every step.
_looked_up: dict[int, Launch | None] = {}


def launched_world_size() -> int:
    """Return the launcher's number of processes, read again; 1 without a launcher."""
    if os.getpid() in _joined:  # joining has set the variables of torchrun
        return number_in("WORLD_SIZE", 1)
    launch = _looked_up[os.getpid()] = find_launch()
    if launch is None and is_batch_script():
        _warn_of_idle_tasks(number_in("SLURM_NTASKS", 1))
    return 1 if launch is None else launch.world_size


def _world_size() -> int:
    """As `launched_world_size`, but cached unless WORLD_SIZE is set."""
    if os.environ.get("WORLD_SIZE") or os.getpid() not in _looked_up:
        return launched_world_size()
    launch = _looked_up[os.getpid()]
    return 1 if launch is None else launch.world_size


def state_is_configured() -> bool:
    """Return True if the script has set up a state of `accelerate` or a process group."""
    return _accelerate_state() is not None or _group_is_there()


def join_others(
    use_cpu: bool = False, ddp_backend: str | None = None, ddp_timeout: float = 1800, configured: bool = False
) -> None:
    """Join the process group of a launcher; do nothing in a single process.

    Args:
        use_cpu: Compute on the CPU even if there is an accelerator.
        ddp_backend: Backend of the process group; by default "nccl" on CUDA, "gloo" on the CPU.
        ddp_timeout: Seconds after which a collective call that never completes fails.
        configured: Use the state of `accelerate`, with its device, if the script has set one up.

    Raises:
        RuntimeError: Variables of the launcher are missing; or this is a fork of a process that has joined.
        ValueError: The backend is not available.
    """
    launched = launched_world_size() > 1
    if not launched and not ("torch.distributed" in sys.modules and _group_is_there()):
        return
    launch = find_launch()
    if launched and launch is not None and os.getpid() not in _joined:
        from .process_group import refuse_inherited_place

        refuse_inherited_place(launch)
    found = current_process(use_cpu, ddp_backend, ddp_timeout, configured)
    if os.getpid() not in _joined:
        from .process_group import warn_of_other_group

        warn_of_other_group(found.backend, ddp_backend, ddp_timeout)


def current_process(
    use_cpu: bool = False, ddp_backend: str | None = None, ddp_timeout: float = 1800, configured: bool = False
) -> ProcessEnvironment:
    """As `transformers.TrainingArguments.distributed_state`: return the place of this process.

    A process of a launcher joins its process group on the first call, and leaves it when the interpreter ends. An
    existing process group is used as it is.

    Args:
        use_cpu: Compute on the CPU even if there is an accelerator.
        ddp_backend: Backend of the process group; by default "nccl" on CUDA, "gloo" on the CPU.
        ddp_timeout: Seconds after which a collective call that never completes fails.
        configured: Use the state of `accelerate`, with its device, if the script has set one up.

    Raises:
        RuntimeError: There are several processes, but the other variables of the launcher are missing; or this process
            was started by one that has joined.
        ValueError: The backend is not available.
    """
    state = _accelerate_state() if configured else None
    if state is not None:
        return _from_accelerate(state)
    use_cpu = use_cpu or os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes", "y", "t", "on")
    has_group = _group_is_there()
    if has_group and os.getpid() not in _joined:
        return _from_group(use_cpu)
    if _world_size() > 1:
        return _launched(use_cpu, ddp_backend, ddp_timeout)
    return _from_group(use_cpu) if has_group else _single(use_cpu)


# Joined groups by process id (a forked child has not joined what its parent has). Once the script has destroyed its
# group, joining again would wait for processes that may be gone.
_joined: dict[int, ProcessEnvironment] = {}


def _launched(use_cpu: bool, backend: str | None, timeout: float) -> ProcessEnvironment:
    if os.getpid() not in _joined:
        _joined[os.getpid()] = _join(use_cpu, backend, timeout)
    return _on_its_device(_joined[os.getpid()], use_cpu)


# Cached as `_single` is.
@lru_cache(maxsize=2)
def _on_its_device(known: ProcessEnvironment, use_cpu: bool) -> ProcessEnvironment:
    return replace(known, device=_device_of_rank(use_cpu, known.local_rank))


def _join(use_cpu: bool, backend: str | None, timeout: float) -> ProcessEnvironment:
    import torch

    from .process_group import join, prepared

    launch = find_launch()
    assert launch is not None  # the world size is above 1
    launch, store = prepared(launch, timeout)
    assert launch.local_rank is not None
    device = _device_of_rank(use_cpu, launch.local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    join(launch, store, backend or ("nccl" if device.type == "cuda" else "gloo"), timeout)
    return replace(_from_group(use_cpu), launcher=launch.launcher)


def _group_is_there() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def _from_group(use_cpu: bool) -> ProcessEnvironment:
    import torch.distributed as dist

    local_rank, local_size = os.environ.get("LOCAL_RANK"), os.environ.get("LOCAL_WORLD_SIZE")
    return _member(dist.get_rank(), dist.get_world_size(), str(dist.get_backend()), use_cpu, local_rank, local_size)


# Cached as `_single` is. Without a local rank in the environment all processes are taken to run on one machine.
@lru_cache(maxsize=4)
def _member(
    rank: int, size: int, backend: str, use_cpu: bool, local_rank_text: str | None, local_size_text: str | None
) -> ProcessEnvironment:
    local_rank = whole_number("LOCAL_RANK", local_rank_text, rank)
    local_size = whole_number("LOCAL_WORLD_SIZE", local_size_text, _processes_here(size, use_cpu))
    return ProcessEnvironment(rank, local_rank, size, local_size, _device_of_rank(use_cpu, local_rank), backend)


def _accelerate_state() -> Any:
    """Return the state that a script has set up with `accelerate`, without importing it; None without one."""
    module = loaded("accelerate.state")
    return module.PartialState() if module is not None and is_set_up(module) else None


def is_set_up(module: Any) -> bool:
    """Return True if the module `accelerate.state` has a state; making an instance to ask would set one up."""
    return module.PartialState.initialized.fget(module.PartialState)


def _from_accelerate(state: Any) -> ProcessEnvironment:
    size = state.num_processes
    local_size = number_in("LOCAL_WORLD_SIZE", size)
    backend = None if size == 1 else state.backend
    return ProcessEnvironment(state.process_index, state.local_process_index, size, local_size, state.device, backend)


def _processes_here(size: int, use_cpu: bool) -> int:
    """Estimate the processes on this machine of a group that the script made, from its devices."""
    import torch

    on_gpus = not use_cpu and torch.cuda.is_available()
    return min(size, torch.cuda.device_count()) if on_gpus else size


def _device_of_rank(use_cpu: bool, local_rank: int) -> "torch.device":
    import torch

    if use_cpu or not torch.cuda.is_available():
        return torch.device("cpu")
    # The remainder serves launchers that make one GPU visible to each process: each then uses its "cuda:0".
    return torch.device("cuda", local_rank % torch.cuda.device_count())


# Cached since device properties are read in every step.
@lru_cache(maxsize=2)
def _single(use_cpu: bool) -> ProcessEnvironment:
    return ProcessEnvironment(0, 0, 1, 1, _single_device(use_cpu))


def _single_device(use_cpu: bool) -> "torch.device":
    import torch

    if use_cpu:
        return torch.device("cpu")
    if xla_is_chosen():
        return xla_device()
    if torch.cuda.is_available():
        _warn_of_idle_gpus(torch.cuda.device_count())
        return torch.device("cuda", 0)
    if torch.backends.mps.is_available():
        return torch.device("mps")
    if torch.xpu.is_available():
        _warn_of_unused_xpu()
    return torch.device("cpu")


@lru_cache(maxsize=1)
def _warn_of_unused_xpu() -> None:
    logger.warning("This machine has a GPU of Intel, but Lightning has no accelerator for it: the CPU is used.")


@lru_cache(maxsize=1)
def _warn_of_idle_gpus(count: int) -> None:
    if count > 1:
        logger.warning(
            "%s GPUs are visible, but only one is used. To use all, start the script with torchrun "
            "--nproc_per_node=%s; or set CUDA_VISIBLE_DEVICES.",
            count,
            count,
        )


@lru_cache(maxsize=1)
def _warn_of_idle_tasks(count: int) -> None:
    if count > 1:
        logger.warning(
            "The job has %s tasks (SLURM_NTASKS), but this is the batch script itself, so only one process trains. Put "
            "srun before the command, or use torchrun.",
            count,
        )
