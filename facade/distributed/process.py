"""Determine rank, world size and device of this process.

Only this module reads the launch (`launchers.py`) for the rest of the facade.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...lightning_modules.common.libraries import loaded
from .launchers import find_launch, is_batch_script, number_in
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
    read = attrgetter(path)
    if not writable:
        return property(read, doc=doc)

    owner_path, _, name = path.rpartition(".")
    get_owner = attrgetter(owner_path)

    def write(self: object, value: object) -> None:
        setattr(get_owner(self), name, value)

    return property(read, write, doc=doc)


@dataclass(frozen=True)
class ProcessEnvironment:
    """Rank, world size and device of this process: what training arguments show of
    `accelerate.PartialState`, as a frozen value.

    Attributes:
        rank: number of this process among all, from 0.
        local_rank: number of this process among those of its machine, from 0.
        world_size: number of processes.
        local_world_size: number of processes on this machine.
        device: device of this process.
        backend: name of the torch.distributed backend; None without a process group.
        launcher: such as `torchrun` or `SLURM`; None without one, or if the script made the process
            group.
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
        """The kind of processes: `NO`, `MULTI_CPU`, `MULTI_GPU` or `XLA`.

        These are the values of the reference's enumeration.
        """
        if self.device.type == "xla":
            return "XLA"
        if self.world_size == 1:
            return "NO"
        if self.device.type == "cpu":
            return "MULTI_CPU"
        return "MULTI_GPU"


@contextlib.contextmanager
def first_process_first(is_first: bool, processes: int) -> Iterator[None]:
    """Run the block on the first process, and then on the others, even if the first one failed.

    Args:
        is_first: whether this process goes first.
        processes: the world size; a single process does not wait.
    """
    if processes == 1:
        yield
        return
    import torch.distributed as dist

    # Both meet at one barrier: the others before the block, the first one after it.
    if not is_first:
        dist.barrier()
    try:
        yield
    finally:
        if is_first:
            dist.barrier()


class _Placement(NamedTuple):
    """`ProcessEnvironment` without the device, so that torch need not be imported."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    backend: str | None = None
    launcher: str | None = None


_SINGLE_PROCESS = _Placement()

_world_sizes: dict[int, int] = {}
"""World sizes of launchers, by process id, because a fork may have another launcher."""

_joined: dict[int, _Placement] = {}
"""Placements in the joined group, by process id, because a fork has not joined its parent's group.

They are kept after the group was destroyed: joining again would wait for processes that may have
exited.
"""


def launched_world_size() -> int:
    """Return the launcher's number of processes, read again; 1 without a launcher."""
    pid = os.getpid()
    if pid in _joined:
        return _joined[pid].world_size
    launch = find_launch()
    if launch is None and is_batch_script() and number_in("SLURM_NTASKS", 1) > 1:
        _warn_once(
            f"The job has {os.environ['SLURM_NTASKS']} tasks (SLURM_NTASKS), but this is the batch "
            "script itself, so only one process trains. Put srun before the command, or use "
            "torchrun."
        )
    if launch is None:
        _world_sizes[pid] = 1
    else:
        _world_sizes[pid] = launch.world_size
    return _world_sizes[pid]


def state_is_configured() -> bool:
    """Return True if the script has set up a state of `accelerate` or a process group."""
    return _accelerate_state() is not None or _has_group()


def join_others(
    use_cpu: bool = False,
    ddp_backend: str | None = None,
    ddp_timeout: float = 1800,
    configured: bool = False,
) -> None:
    """Join the process group of a launcher. Does nothing in a single process.

    Args:
        use_cpu: compute on the CPU even if there is an accelerator.
        ddp_backend: backend of the process group; by default "nccl" on CUDA, "gloo" on the CPU.
        ddp_timeout: seconds after which a collective call that never completes fails.
        configured: use the state of `accelerate`, with its device, if the script has set one up.

    Raises:
        RuntimeError: variables of the launcher are missing; or this is a fork of a process that has
            joined.
        ValueError: the backend is not available.
    """
    is_launched = launched_world_size() > 1
    has_group_of_script = "torch.distributed" in sys.modules and _has_group()
    if not is_launched and not has_group_of_script:
        return
    from .process_group import refuse_inherited_rank, warn_of_other_group

    # A fork of a process that has joined has its group, too.
    had_joined = os.getpid() in _joined
    launch = find_launch()
    if is_launched and launch is not None and not had_joined:
        refuse_inherited_rank(launch)

    process = current_process(use_cpu, ddp_backend, ddp_timeout, configured)
    if os.getpid() not in _joined:
        warn_of_other_group(process.backend, ddp_backend, ddp_timeout)


def current_process(
    use_cpu: bool = False,
    ddp_backend: str | None = None,
    ddp_timeout: float = 1800,
    configured: bool = False,
) -> ProcessEnvironment:
    """Return rank, world size and device of this process.

    As `TrainingArguments.distributed_state` of transformers. A process of a launcher joins its
    process group on the first call, and leaves it when the interpreter ends. An existing process
    group is used as it is.

    Args:
        use_cpu: compute on the CPU even if there is an accelerator.
        ddp_backend: backend of the process group; by default "nccl" on CUDA, "gloo" on the CPU.
        ddp_timeout: seconds after which a collective call that never completes fails.
        configured: use the state of `accelerate`, with its device, if the script has set one up.

    Raises:
        RuntimeError: there are several processes, but the other variables of the launcher are
            missing; or this process was started by one that has joined.
        ValueError: the backend is not available.
    """
    if configured:
        state = _accelerate_state()
        if state is not None:
            return _from_accelerate(state)

    use_cpu = use_cpu or os.environ.get("ACCELERATE_USE_CPU", "").lower() in _TRUE_WORDS

    # A group that this process has joined, or that the script has made.
    pid = os.getpid()
    if pid in _joined:
        return _environment_of(_joined[pid], use_cpu)
    if _has_group():
        return _environment_of(_placement_in_group(use_cpu), use_cpu)

    # Without the variables of torchrun the launch is looked up once.
    if pid not in _world_sizes or os.environ.get("WORLD_SIZE"):
        launched_world_size()
    if _world_sizes[pid] == 1:
        return _environment_of(_SINGLE_PROCESS, use_cpu)

    _joined[pid] = _join(use_cpu, ddp_backend, ddp_timeout)
    return _environment_of(_joined[pid], use_cpu)


_TRUE_WORDS = ("1", "true", "yes", "y", "t", "on")
"""Lower-case values of environment variables of `accelerate` that mean True."""


def _join(use_cpu: bool, backend: str | None, timeout: float) -> _Placement:
    """Join the process group of the launcher, and return the placement in it."""
    import torch

    from .process_group import join

    launch = find_launch()
    assert launch is not None  # the world size is above 1

    on_gpu = not use_cpu and torch.cuda.is_available()
    if not backend:
        backend = "nccl" if on_gpu else "gloo"
    launch = join(launch, backend, timeout)
    placement = _placement_in_group(use_cpu)._replace(launcher=launch.launcher)
    if on_gpu:
        torch.cuda.set_device(_device_of_rank(use_cpu, placement.local_rank))
    return placement


def _has_group() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def _placement_in_group(use_cpu: bool) -> _Placement:
    """Return the placement in the process group.

    If the script made it without the variables of torchrun, all processes are taken to run on one
    machine, but no more than it has GPUs.
    """
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    world_size = dist.get_world_size()

    # The default if LOCAL_WORLD_SIZE is not set.
    assumed_local_size = world_size
    if not use_cpu and torch.cuda.is_available():
        assumed_local_size = min(world_size, torch.cuda.device_count())
    return _Placement(
        rank=rank,
        local_rank=number_in("LOCAL_RANK", rank),
        world_size=world_size,
        local_world_size=number_in("LOCAL_WORLD_SIZE", assumed_local_size),
        backend=str(dist.get_backend()),
    )


class _AccelerateState(Protocol):
    """The attributes that are read of an `accelerate.PartialState`."""

    num_processes: int
    process_index: int
    local_process_index: int
    device: "torch.device"
    backend: str | None


def _accelerate_state() -> _AccelerateState | None:
    """Return the state that a script has set up with `accelerate`, without importing it."""
    module = loaded("accelerate.state")
    if module is None or not has_accelerate_state(module):
        return None
    return module.PartialState()


def has_accelerate_state(module: Any) -> bool:
    """Return True if a state of `accelerate` is set up.

    Args:
        module: the module `accelerate.state`. An instance of its class, made to ask, would set up a
            state.
    """
    return module.PartialState.initialized.fget(module.PartialState)


def _from_accelerate(state: _AccelerateState) -> ProcessEnvironment:
    """Return the environment that a state of `accelerate` describes."""
    world_size = state.num_processes
    backend = None
    if world_size != 1:
        backend = state.backend
    return ProcessEnvironment(
        rank=state.process_index,
        local_rank=state.local_process_index,
        world_size=world_size,
        local_world_size=number_in("LOCAL_WORLD_SIZE", world_size),
        device=state.device,
        backend=backend,
    )


# Cached since device properties are read in every step.
@lru_cache(maxsize=4)
def _environment_of(placement: _Placement, use_cpu: bool) -> ProcessEnvironment:
    """Add the device to a placement."""
    if placement == _SINGLE_PROCESS:
        device = _single_device(use_cpu)
    else:
        device = _device_of_rank(use_cpu, placement.local_rank)
    return ProcessEnvironment(
        rank=placement.rank,
        local_rank=placement.local_rank,
        world_size=placement.world_size,
        local_world_size=placement.local_world_size,
        device=device,
        backend=placement.backend,
        launcher=placement.launcher,
    )


def _device_of_rank(use_cpu: bool, local_rank: int) -> "torch.device":
    """Return the device of one of several processes."""
    import torch

    if use_cpu or not torch.cuda.is_available():
        return torch.device("cpu")
    # Some launchers make a single GPU visible to each process, which is "cuda:0" in all of them:
    # hence the remainder.
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def _single_device(use_cpu: bool) -> "torch.device":
    """Return the device of a single process."""
    import torch

    if use_cpu:
        return torch.device("cpu")

    # As in the reference, TPUs come before GPUs.
    if xla_is_chosen():
        return xla_device()
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        if count > 1:
            _warn_once(
                f"{count} GPUs are visible, but only one is used. To use all, start the script "
                f"with torchrun --nproc_per_node={count}; or set CUDA_VISIBLE_DEVICES."
            )
        return torch.device("cuda", 0)
    if torch.backends.mps.is_available():
        return torch.device("mps")
    if torch.xpu.is_available():
        _warn_once(
            "This machine has an Intel GPU, but Lightning has no accelerator for it: the CPU is "
            "used."
        )
    return torch.device("cpu")


@cache
def _warn_once(message: str) -> None:
    logger.warning(message)
