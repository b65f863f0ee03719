"""Read launcher, rank and world size from the environment variables of launchers.

Addresses are resolved later, when a process joins its group (`process_group.py`), by Lightning's
class for the launcher if there is one.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ...lightning_modules.common.libraries import loaded

_REMEDY = "Start all processes with torchrun, or unset it to train in one process."


class _Variables(NamedTuple):
    """Environment variables of a launcher. The ones for local rank and local size may be unset."""

    launcher: str
    size: str
    rank: str
    local_rank: str
    local_size: str
    needed: tuple[str, ...] = ()
    """Variables that have to be set in addition to size and rank."""


TORCHRUN = _Variables(
    launcher="variables",
    size="WORLD_SIZE",
    rank="RANK",
    local_rank="LOCAL_RANK",
    local_size="LOCAL_WORLD_SIZE",
)
"""Kubeflow and other programs set them, too."""

_MPICH = _Variables(
    launcher="MPI",
    size="PMI_SIZE",
    rank="PMI_RANK",
    local_rank="MPI_LOCALRANKID",
    local_size="MPI_LOCALNRANKS",
)

# SLURM comes after MPI: under SLURM, `mpirun` leaves the same SLURM rank in all processes of a
# machine.
LAUNCHERS = {
    "LSF": _Variables(
        launcher="LSF",
        size="JSM_NAMESPACE_SIZE",
        rank="JSM_NAMESPACE_RANK",
        local_rank="JSM_NAMESPACE_LOCAL_RANK",
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
        needed=("LSB_JOBID", "LSB_DJOB_RANKFILE", "JSM_NAMESPACE_LOCAL_RANK"),
    ),
    "Open MPI": _Variables(
        launcher="MPI",
        size="OMPI_COMM_WORLD_SIZE",
        rank="OMPI_COMM_WORLD_RANK",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "MVAPICH": _Variables(
        launcher="MPI",
        size="MV2_COMM_WORLD_SIZE",
        rank="MV2_COMM_WORLD_RANK",
        local_rank="MV2_COMM_WORLD_LOCAL_RANK",
        local_size="MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    # srun sets the variables of MPICH as well, except for the local rank.
    "Intel MPI": _MPICH._replace(needed=("MPI_LOCALRANKID",)),
    "SLURM": _Variables(
        launcher="SLURM",
        size="SLURM_NTASKS",
        rank="SLURM_PROCID",
        local_rank="SLURM_LOCALID",
        local_size="",
        needed=("SLURM_LOCALID",),
    ),
    "MPICH": _MPICH,
}
"""Launchers that set other variables than torchrun, in their order of precedence."""


@dataclass(frozen=True)
class Launch:
    """Rank and world size of this process according to a launcher.

    Attributes:
        launcher: `torchrun`, `SLURM`, `LSF`, `MPI`, `mpi4py`, `Kubeflow`, `Lightning` or
            `variables`.
        world_size: number of processes.
        rank: number of this process among all, from 0.
        local_rank: rank among the processes of this machine; None if not yet known.
        local_world_size: number of processes on this machine; None if not yet known.
        variables: the environment variables that these numbers are from.
    """

    launcher: str
    world_size: int
    rank: int
    local_rank: int | None = None
    local_world_size: int | None = None
    variables: _Variables = field(default=TORCHRUN, compare=False, repr=False)

    def check(self) -> None:
        """Check the ranges of the numbers.

        Other ranks would wait for a process with a wrong rank until the timeout.

        Raises:
            RuntimeError: a number is out of range.
        """
        # An old convention for a process without a launcher.
        if self.world_size == 1 and self.rank == -1:
            return

        names = self.variables
        self._require(names.size, self.world_size, 1, self.world_size)
        self._require(names.rank, self.rank, 0, self.world_size - 1)
        if self.world_size > 1:
            self._require(names.local_size, self.local_world_size, 1, self.world_size)
            most_local_processes = self.local_world_size or self.world_size
            self._require(names.local_rank, self.local_rank, 0, most_local_processes - 1)

    def _require(self, variable: str, value: int | None, least: int, most: int) -> None:
        if value is None or least <= value <= most:
            return
        raise RuntimeError(
            f"The environment variable {variable} is {value}, but must be between {least} and "
            f"{most} (with {self.variables.size}={self.world_size}). {_REMEDY}"
        )

    def with_hosts(self, hosts: Sequence[str]) -> Launch:
        """Return a copy with local rank and local size.

        Args:
            hosts: the host names of all processes, by rank.
        """
        ranks_on_host = [rank for rank, host in enumerate(hosts) if host == hosts[self.rank]]
        local_rank = self.local_rank
        if local_rank is None:
            local_rank = ranks_on_host.index(self.rank)
        return replace(self, local_rank=local_rank, local_world_size=len(ranks_on_host))


_LAUNCHER_VARIABLES = {"WORLD_SIZE", "RANK", "LOCAL_RANK"}
_LAUNCHER_VARIABLES.update(variables.size for variables in LAUNCHERS.values())
"""Variables of which each launcher but mpi4py sets one."""


def find_launch() -> Launch | None:
    """Return the launch described by the environment; None without a launcher.

    The variables of torchrun come first, as for `accelerate`.

    Raises:
        RuntimeError: a variable is not a number, is out of range, or is missing.
    """
    # Most processes have no launcher.
    if os.environ.keys().isdisjoint(_LAUNCHER_VARIABLES) and loaded("mpi4py.MPI") is None:
        return None

    # The first launcher whose variables are complete.
    for read_launch in (_torchrun_launch, _mpi_or_slurm_launch, _lightning_launch, _mpi4py_launch):
        launch = read_launch()
        if launch is not None:
            launch.check()
            return launch
    _refuse_incomplete_variables()
    return None


def _torchrun_launch() -> Launch | None:
    """Read the variables of torchrun, which other launchers set too."""
    if not _are_set("WORLD_SIZE", "RANK"):
        return None
    launch = _read(TORCHRUN)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return replace(launch, launcher="torchrun")

    # A PyTorchJob has one process in each pod.
    if launch.local_rank is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        return replace(launch, launcher="Kubeflow", local_rank=0, local_world_size=1)
    return launch


def _mpi_or_slurm_launch() -> Launch | None:
    """Read the variables of the first launcher that has started several processes."""
    for variables in LAUNCHERS.values():
        if not _are_set(variables.size, variables.rank, *variables.needed):
            continue
        if number_in(variables.size, 1) == 1:
            continue
        launch = _read(variables)
        if launch.launcher != "SLURM":
            return launch

        # A batch script and an interactive shell have the variables of tasks that have not been
        # started.
        if is_batch_script() or os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive"):
            continue
        if number_in("SLURM_NNODES", 0) == 1:
            return replace(launch, local_world_size=launch.world_size)
        return launch
    return None


def _lightning_launch() -> Launch | None:
    """Read the variables of processes that `lightning.Trainer` and `Fabric` start themselves.

    They start the script again on the first machine, for each further local rank.
    """
    if not _are_set("WORLD_SIZE", "LOCAL_RANK", "NODE_RANK") or number_in("NODE_RANK", 0) > 0:
        return None
    size = number_in("WORLD_SIZE", 1)
    rank = number_in("LOCAL_RANK", 0)
    if size <= 1:
        return None
    return Launch("Lightning", world_size=size, rank=rank, local_rank=rank, local_world_size=size)


def _mpi4py_launch() -> Launch | None:
    """Read the communicator of mpi4py, if the script has initialized MPI.

    This serves launchers without variables.
    """
    module = loaded("mpi4py.MPI")
    if module is None or not module.Is_initialized() or module.Is_finalized():
        return None
    size = module.COMM_WORLD.Get_size()
    if size <= 1:
        return None
    return Launch("mpi4py", world_size=size, rank=module.COMM_WORLD.Get_rank())


def _refuse_incomplete_variables() -> None:
    """Raise for a world size without a rank, and for a rank without a world size.

    Raises:
        RuntimeError: one of the two is missing, and the script has not made the group itself.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return
    if number_in("WORLD_SIZE", 1) > 1:
        raise RuntimeError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} is set, but RANK is not. {_REMEDY}"
        )
    if _are_set("WORLD_SIZE"):
        return

    # A rank of 0 alone does not imply that there are other processes.
    for name in ("RANK", "LOCAL_RANK"):
        if number_in(name, 0) > 0:
            raise RuntimeError(
                f"{name}={os.environ[name]} is set, but WORLD_SIZE is not. {_REMEDY}"
            )


def is_batch_script() -> bool:
    """Return whether this is the batch script of a SLURM job, outside of srun's job steps."""
    is_in_step = "SLURM_STEP_ID" in os.environ or "SLURM_STEPID" in os.environ
    return "SLURMD_NODENAME" in os.environ and not is_in_step


def _read(variables: _Variables) -> Launch:
    return Launch(
        launcher=variables.launcher,
        world_size=number_in(variables.size, 1),
        rank=number_in(variables.rank, 0),
        local_rank=_number_if_set(variables.local_rank),
        local_world_size=_number_if_set(variables.local_size),
        variables=variables,
    )


def number_in(variable: str, default: int) -> int:
    """Return the whole number in an environment variable.

    Raises:
        RuntimeError: it is not a whole number.
    """
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise RuntimeError(
            f"The environment variable {variable} is {text!r}, which is not a whole number. "
            f"{_REMEDY}"
        ) from None


def port_in(variable: str) -> int:
    """Return the port in an environment variable that is set.

    Raises:
        RuntimeError: it is not a valid port.
    """
    port = number_in(variable, 0)
    if not 1 <= port <= 65535:
        raise RuntimeError(
            f"The environment variable {variable} is not a valid port: "
            f"{os.environ.get(variable)!r}."
        )
    return port


_JOB_NAMES = (
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "PMI_JOBID",
    "HYDRA_JOBID",
    "SLURM_JOB_ID",
)
"""Variables with the same value in all processes of a job, and another one in other jobs."""


def port_from_job_name() -> int:
    """Return a port that is the same in all processes of a job; 29500 without a job's name."""
    for variable in _JOB_NAMES:
        job_name = os.environ.get(variable)
        if job_name:
            return 20000 + zlib.crc32(job_name.encode()) % 10000
    return 29500


def _are_set(*names: str) -> bool:
    return all(os.environ.get(name, "").strip() for name in names)


def _number_if_set(name: str) -> int | None:
    if not _are_set(name):
        return None
    return number_in(name, 0)
