"""Which of how many processes this one is, and the device it works on.

The environment that `torchrun` sets is turned into one small value here; nothing else in the facade reads it.
"""

import atexit
import gc
import logging
import os
import sys
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["ProcessEnvironment", "current_process", "launched_world_size", "state_is_configured"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProcessEnvironment:
    """As the part of `accelerate.PartialState` that training arguments show, but a plain frozen value.

    Attributes:
        rank: Number of this process among all, from 0.
        local_rank: Number of this process among those of its machine, from 0.
        world_size: How many processes there are.
        local_world_size: How many of them run on this machine.
        device: Where this process computes.
        backend: Name of the torch.distributed backend; None where there is no process group.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    device: "torch.device"
    backend: str | None = None

    @property
    def num_processes(self) -> int:
        """The reference's name of `world_size`."""
        return self.world_size

    @property
    def process_index(self) -> int:
        """The reference's name of `rank`."""
        return self.rank

    @property
    def local_process_index(self) -> int:
        """The reference's name of `local_rank`."""
        return self.local_rank

    @property
    def is_main_process(self) -> bool:
        """Whether this is the first process of all."""
        return self.rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first process of its machine."""
        return self.local_rank == 0

    @property
    def distributed_type(self) -> str:
        """`NO`, `MULTI_CPU` or `MULTI_GPU`, as the members of the reference's enumeration read."""
        if self.world_size == 1:
            return "NO"
        return "MULTI_CPU" if self.device.type == "cpu" else "MULTI_GPU"


def launched_world_size() -> int:
    """How many processes the launcher says it started: WORLD_SIZE, or 1 where there is no launcher."""
    return _number("WORLD_SIZE", 1)


def state_is_configured() -> bool:
    """Whether the script has said already how its processes stand: to `accelerate`, or to torch.distributed."""
    return _accelerate_state() is not None or _group_is_there()


def current_process(
    use_cpu: bool = False, ddp_backend: str | None = None, ddp_timeout: float = 1800, configured: bool = False
) -> ProcessEnvironment:
    """As `transformers.TrainingArguments.distributed_state`: where this process stands.

    A process that a launcher started together with others (WORLD_SIZE > 1) joins their process group on the first
    call, and leaves it when the interpreter ends. A process group that is already there is taken as it is.

    Args:
        use_cpu: Compute on the CPU although there is an accelerator.
        ddp_backend: Backend of the process group; by default "nccl" on CUDA, "gloo" on the CPU.
        ddp_timeout: Seconds after which a collective call that never completes fails.
        configured: Take over the state that the script gave to `accelerate`, with its device, if there is one.

    Raises:
        RuntimeError: WORLD_SIZE > 1, but the other variables of the launcher are missing.
    """
    state = _accelerate_state() if configured else None
    if state is not None:
        return _from_accelerate(state)
    use_cpu = use_cpu or os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes", "y", "t", "on")
    if launched_world_size() > 1:
        return _launched(use_cpu, ddp_backend, ddp_timeout)
    if _group_is_there():
        return _from_group(use_cpu)
    return _single(use_cpu)


# Joined groups by process id (a forked child has not joined what its parent has). Once the script has destroyed its
# group, joining again would wait for processes that may be gone.
_joined: dict[int, ProcessEnvironment] = {}


def _launched(use_cpu: bool, backend: str | None, timeout: float) -> ProcessEnvironment:
    if _group_is_there():
        return _from_group(use_cpu)
    if os.getpid() not in _joined:
        _joined[os.getpid()] = _join(use_cpu, backend, timeout)
    known = _joined[os.getpid()]
    return replace(known, device=_device_of_rank(use_cpu, known.local_rank))


def _join(use_cpu: bool, backend: str | None, timeout: float) -> ProcessEnvironment:
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        raise RuntimeError(
            f"WORLD_SIZE={launched_world_size()}, but this build of torch has no torch.distributed. "
            "Install one that has, or start a single process."
        )
    if "RANK" not in os.environ:
        raise RuntimeError(
            f"WORLD_SIZE={launched_world_size()} is set, but RANK is not. Start the script with torchrun, "
            "or unset WORLD_SIZE to train in one process."
        )
    device = _device_of_rank(use_cpu, _local_rank())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    chosen = backend or ("nccl" if device.type == "cuda" else "gloo")
    # Its functions have the default group of the moment of its import as the default of an argument, and DDP imports
    # it: imported later than the group is made it would keep the group, and its threads, alive beyond `_leave`.
    import torch.distributed.nn.functional

    dist.init_process_group(chosen, timeout=timedelta(seconds=timeout))
    # A gloo group whose threads outlive Python may end with "terminate called without an active exception".
    atexit.register(_leave)
    return _from_group(use_cpu)


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        # A DistributedDataParallel in a reference cycle would be taken apart after its group: it may abort or hang.
        gc.collect()
        dist.destroy_process_group()


def _group_is_there() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def _from_group(use_cpu: bool) -> ProcessEnvironment:
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    local_rank = _local_rank(rank)
    local_size = _number("LOCAL_WORLD_SIZE", size)
    return ProcessEnvironment(
        rank, local_rank, size, local_size, _device_of_rank(use_cpu, local_rank), str(dist.get_backend())
    )


def _accelerate_state() -> Any:
    """The state that a script has set up with `accelerate`, found without importing it; None without one."""
    module = sys.modules.get("accelerate.state")
    if module is None or not getattr(module.PartialState, "_shared_state", None):
        return None
    return module.PartialState()


def _from_accelerate(state: Any) -> ProcessEnvironment:
    size = state.num_processes
    local_size = _number("LOCAL_WORLD_SIZE", size)
    backend = None if size == 1 else state.backend
    return ProcessEnvironment(state.process_index, state.local_process_index, size, local_size, state.device, backend)


def _local_rank(rank: int | None = None) -> int:
    """LOCAL_RANK; where it is missing, all processes are taken to run on one machine."""
    return _number("LOCAL_RANK", _number("RANK", 0) if rank is None else rank)


def _device_of_rank(use_cpu: bool, local_rank: int) -> "torch.device":
    import torch

    if use_cpu or not torch.cuda.is_available():
        return torch.device("cpu")
    # The remainder is for launchers that show each process one GPU only: all of them then use their "cuda:0".
    return torch.device("cuda", local_rank % torch.cuda.device_count())


# Cached since device properties are read in every step.
@lru_cache(maxsize=2)
def _single(use_cpu: bool) -> ProcessEnvironment:
    return ProcessEnvironment(0, 0, 1, 1, _single_device(use_cpu))


def _single_device(use_cpu: bool) -> "torch.device":
    import torch

    if use_cpu:
        return torch.device("cpu")
    if torch.cuda.is_available():
        _warn_of_idle_gpus(torch.cuda.device_count())
        return torch.device("cuda", 0)
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


@lru_cache(maxsize=1)
def _warn_of_idle_gpus(count: int) -> None:
    if count > 1:
        logger.warning(
            f"{count} GPUs are visible, one of them is used. To use all of them start the script with "
            f"`torchrun --nproc_per_node={count}`; to silence this, set CUDA_VISIBLE_DEVICES to one GPU."
        )


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if not text.strip():
        return default
    try:
        return int(text)
    except ValueError:
        raise RuntimeError(
            f"The environment variable {variable} is {text!r}, which is not a whole number. "
            "It is set by launchers such as torchrun; unset it to train in one process."
        ) from None
