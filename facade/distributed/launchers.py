"""Read launcher, rank and world size from the environment variables of launchers.

Addresses are resolved later, when a process joins its group (`process_group.py`), by Lightning's class for the launcher
if there is one.
"""

from __future__ import annotations

import functools
import math
import os
import re
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...lightning_modules.common.libraries import loaded

TORCHRUN = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""Size, rank, local rank and local size, as torchrun and compatible launchers name them."""


@dataclass(frozen=True)
class Launch:
    """The place of this process among those of a launcher.

    Attributes:
        launcher: `torchrun`, `SLURM`, `LSF`, `MPI`, `mpi4py`, `Kubeflow`, `Lightning` or `variables`.
        world_size: Number of processes.
        rank: None if the launcher does not set it.
        local_rank: Rank among the processes of this machine; None if not yet known.
        local_world_size: Number of processes on this machine; None if not yet known.
        variables: Names of the variables of size, rank, local rank and local size.
    """

    launcher: str
    world_size: int
    rank: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    variables: tuple[str, ...] = field(default=TORCHRUN, compare=False, repr=False)

    def check(self) -> None:
        """Check the ranges: other ranks would wait for a process with a wrong rank until the timeout.

        Raises:
            RuntimeError: A number is out of range.
        """
        if self.world_size == 1 and self.rank == -1:  # an old convention for a process without a launcher
            return
        sizes, ranks, local_ranks, local_sizes = self.variables
        here = self.local_world_size or self.world_size
        limits = [(sizes, self.world_size, 1, math.inf), (ranks, self.rank, 0, self.world_size - 1)]
        if self.world_size > 1:
            limits.append((local_sizes, self.local_world_size, 1, self.world_size))
            limits.append((local_ranks, self.local_rank, 0, here - 1))
        for variable, value, least, most in limits:
            if value is not None and not least <= value <= most:
                place = f"with {sizes}={self.world_size} and {here} processes on this machine"
                wrong = f"The environment variable {variable} is {value}, and {place} it is from {least} to {most}"
                raise RuntimeError(f"{wrong}. Start all processes with torchrun, or unset it to train in one process.")

    def placed(self, hosts: Sequence[str]) -> Launch:
        """Return a copy with local rank and local size, from the host names of all processes by rank."""
        assert self.rank is not None
        beside = [rank for rank, host in enumerate(hosts) if host == hosts[self.rank]]
        local_rank = beside.index(self.rank) if self.local_rank is None else self.local_rank
        return replace(self, local_rank=local_rank, local_world_size=len(beside))


def find_launch() -> Launch | None:
    """Return the launch described by the environment; None without a launcher.

    The variables of torchrun come first, as for `accelerate`. SLURM comes after MPI: under SLURM, `mpirun` leaves the
    same SLURM rank in all processes of a machine.

    Raises:
        RuntimeError: A variable is not a number, or is out of range.
    """
    without_local = functools.partial(_mpi, needed=2)
    for look in (_variables, _lsf, _mpi, _slurm, without_local, _lightning, _mpi4py, _variables_without_rank):
        launch = look()
        if launch is not None:
            launch.check()
            return launch
    return None


def number_in(variable: str, default: int) -> int:
    """Return the whole number in an environment variable.

    Raises:
        RuntimeError: It is not a whole number.
    """
    return whole_number(variable, os.environ.get(variable), default)


def whole_number(variable: str, text: str | None, default: int) -> int:
    """As `number_in`, for a value that was read before; None if the variable was not set.

    Raises:
        RuntimeError: see `number_in`.
    """
    if text is None or not text.strip():
        return default
    try:
        return int(text)
    except ValueError:
        wrong = f"The environment variable {variable} is {text!r}, which is not a whole number"
        raise RuntimeError(f"{wrong}. Launchers set it; unset it to train in one process.") from None


def on_this_machine() -> bool:
    """Return True if MASTER_ADDR is a loopback address."""
    address = os.environ.get("MASTER_ADDR", "")
    return address == "localhost" or address.startswith("127.") or address == "::1"


def port_of_job() -> int:
    """Return a port that all processes of a job derive alike from the job's name; 29500 without one."""
    for variable in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "HYDRA_JOBID", "SLURM_JOB_ID"):
        if os.environ.get(variable):
            return 20000 + zlib.crc32(os.environ[variable].encode()) % 10000
    return 29500


def _variables() -> Launch | None:
    """Read the variables of torchrun, which other launchers set too."""
    if not _are_set("WORLD_SIZE", "RANK"):
        return None
    size, rank = number_in("WORLD_SIZE", 1), number_in("RANK", 0)
    local_rank, local_size = _number("LOCAL_RANK"), _number("LOCAL_WORLD_SIZE")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return Launch("torchrun", size, rank, local_rank, local_size)
    if local_rank is None and "KUBERNETES_SERVICE_HOST" in os.environ:  # a PyTorchJob: one process in each pod
        return Launch("Kubeflow", size, rank, 0, 1)
    if on_this_machine():
        local_rank = rank if local_rank is None else local_rank
        local_size = size if local_size is None else local_size
    return Launch("variables", size, rank, local_rank, local_size)


def _variables_without_rank() -> Launch | None:
    """Read WORLD_SIZE without a rank; refuse a rank without WORLD_SIZE."""
    size = number_in("WORLD_SIZE", 1)
    for name in () if _are_set("WORLD_SIZE") or _has_group() else ("RANK", "LOCAL_RANK"):
        if number_in(name, 0) > 0:
            wrong = f"{name}={os.environ[name]} is set, but WORLD_SIZE is not"
            raise RuntimeError(f"{wrong}. Start the script with torchrun, or unset {name} to train in one process.")
    return None if size == 1 else Launch("variables", size)


def _has_group() -> bool:
    """Return True if the script has made the process group itself."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _lsf() -> Launch | None:
    """Read the variables of jsrun."""
    needed = ("LSB_JOBID", "LSB_DJOB_RANKFILE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK")
    if not _are_set(*needed) or number_in("JSM_NAMESPACE_SIZE", 1) == 1:
        return None
    names = ("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    return _launch_of("LSF", names)


_MPI = (
    tuple(f"OMPI_COMM_WORLD_{name}" for name in ("SIZE", "RANK", "LOCAL_RANK", "LOCAL_SIZE")),
    tuple(f"MV2_COMM_WORLD_{name}" for name in ("SIZE", "RANK", "LOCAL_RANK", "LOCAL_SIZE")),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Size, rank, local rank and local size: of Open MPI; MVAPICH; MPICH and Intel MPI."""


def _mpi(needed: int = 4) -> Launch | None:
    """Read the variables of an mpirun; some leave out the last two, the local numbers."""
    for names in _MPI:
        if _are_set(*names[:needed]) and number_in(names[0], 1) > 1:
            return _launch_of("MPI", names)
    return None


def _launch_of(launcher: str, names: tuple[str, ...]) -> Launch:
    """Read variables of size, rank, local rank and local size, of which the last two may lack."""
    size, rank, local_rank, local_size = names
    return Launch(launcher, number_in(size, 1), number_in(rank, 0), _number(local_rank), _number(local_size), names)


def _slurm() -> Launch | None:
    """Read the variables of srun; not those of a batch script or of an interactive shell."""
    if not _are_set("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID") or number_in("SLURM_NTASKS", 1) == 1:
        return None
    if os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive") or is_batch_script():
        return None
    size, node = number_in("SLURM_NTASKS", 1), number_in("SLURM_NODEID", 0)
    rank, local_rank = number_in("SLURM_PROCID", 0), number_in("SLURM_LOCALID", 0)
    names = ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")
    return Launch("SLURM", size, rank, local_rank, _slurm_tasks_here(size, node), names)


def is_batch_script() -> bool:
    """Return True in the batch script of a SLURM job, outside the steps that srun makes.

    The script has the variables of the job's tasks although these have not been started.
    """
    return "SLURMD_NODENAME" in os.environ and not {"SLURM_STEP_ID", "SLURM_STEPID"} & os.environ.keys()


def _slurm_tasks_here(size: int, node: int) -> int | None:
    """Return the tasks on this node, from texts such as `2(x3),1`; None if they do not add up to the size."""
    for variable in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ.get(variable, ""))
        tasks = [int(count) for count, times in parts for _ in range(int(times or 1))]
        if sum(tasks) == size and node < len(tasks):
            return tasks[node]
    each = _number("SLURM_NTASKS_PER_NODE")
    if each and size % each == 0 and size // each == number_in("SLURM_NNODES", size // each):
        return each
    return size if number_in("SLURM_NNODES", 0) == 1 else None


def _lightning() -> Launch | None:
    """Read the variables of Lightning's launcher: `lightning.Trainer` and `Fabric` restart the script without RANK."""
    if not _are_set("WORLD_SIZE", "LOCAL_RANK", "NODE_RANK") or number_in("WORLD_SIZE", 1) == 1:
        return None
    size, local_rank, node = (number_in(name, 0) for name in ("WORLD_SIZE", "LOCAL_RANK", "NODE_RANK"))
    local_size = _number("LOCAL_WORLD_SIZE")
    if node == 0:
        return Launch("Lightning", size, local_rank, local_rank, size if on_this_machine() else local_size)
    rank = None if local_size is None else node * local_size + local_rank
    return Launch("Lightning", size, rank, local_rank, local_size)


def _mpi4py() -> Launch | None:
    """Read the communicator of mpi4py, for launchers without variables, if the script has initialized MPI."""
    module = loaded("mpi4py.MPI")
    if module is None or not module.Is_initialized() or module.Is_finalized():
        return None
    size = module.COMM_WORLD.Get_size()
    return Launch("mpi4py", size, module.COMM_WORLD.Get_rank()) if size > 1 else None


def port_in(variable: str) -> int:
    """Return the port in an environment variable that is set.

    Raises:
        RuntimeError: It is not a valid port.
    """
    port = number_in(variable, 0)
    if not 1 <= port <= 65535:
        raise RuntimeError(f"The environment variable {variable} is not a valid port: {os.environ.get(variable)!r}.")
    return port


def _are_set(*names: str) -> bool:
    return all(os.environ.get(name, "").strip() for name in names)


def _number(name: str) -> int | None:
    return number_in(name, 0) if _are_set(name) else None
