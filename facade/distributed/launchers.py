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
    """Environment variables of a launcher. Those of local rank and local size may be unset."""

    launcher: str
    size: str
    rank: str
    local_rank: str
    local_size: str
    needed: tuple[str, ...] = ()
    """Variables that have to be set beside size and rank."""


_TORCHRUN = _Variables("variables", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""Also of Kubeflow, and of any program that sets them."""

_OPEN_MPI = _Variables(
    "MPI",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
_MVAPICH = _Variables(
    "MPI",
    "MV2_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_SIZE",
)
_PMI = _Variables("MPI", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
"""Of MPICH and Intel MPI; srun sets the first two as well."""

_LSF = _Variables(
    launcher="LSF",
    size="JSM_NAMESPACE_SIZE",
    rank="JSM_NAMESPACE_RANK",
    local_rank="JSM_NAMESPACE_LOCAL_RANK",
    local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
    needed=("LSB_JOBID", "LSB_DJOB_RANKFILE", "JSM_NAMESPACE_LOCAL_RANK"),
)
_SLURM = _Variables(
    "SLURM", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "", needed=("SLURM_LOCALID",)
)

# SLURM comes after MPI: under SLURM, `mpirun` leaves the same SLURM rank in all processes of a
# machine.
_LAUNCHERS = (_LSF, _OPEN_MPI, _MVAPICH, _PMI._replace(needed=("MPI_LOCALRANKID",)), _SLURM, _PMI)


@dataclass(frozen=True)
class Launch:
    """The place of this process among those of a launcher.

    Attributes:
        launcher: `torchrun`, `SLURM`, `LSF`, `MPI`, `mpi4py`, `Kubeflow`, `Lightning` or
            `variables`.
        world_size: Number of processes.
        rank: Number of this process among all, from 0.
        local_rank: Rank among the processes of this machine; None if not yet known.
        local_world_size: Number of processes on this machine; None if not yet known.
        variables: The environment variables that say so.
    """

    launcher: str
    world_size: int
    rank: int
    local_rank: int | None = None
    local_world_size: int | None = None
    variables: _Variables = field(default=_TORCHRUN, compare=False, repr=False)

    def check(self) -> None:
        """Check the ranges: other ranks would wait for a process with a wrong rank until the
        timeout.

        Raises:
            RuntimeError: A number is out of range.
        """
        # An old convention for a process without a launcher.
        if self.world_size == 1 and self.rank == -1:
            return

        names = self.variables
        here = self.local_world_size or self.world_size
        self._require(names.size, self.world_size, 1, self.world_size)
        self._require(names.rank, self.rank, 0, self.world_size - 1)
        if self.world_size > 1:
            self._require(names.local_size, self.local_world_size, 1, self.world_size)
            self._require(names.local_rank, self.local_rank, 0, here - 1)

    def _require(self, variable: str, value: int | None, least: int, most: int) -> None:
        if value is None or least <= value <= most:
            return
        raise RuntimeError(
            f"The environment variable {variable} is {value}, which is not between {least} and "
            f"{most} (with {self.variables.size}={self.world_size}). {_REMEDY}"
        )

    def placed(self, hosts: Sequence[str]) -> Launch:
        """Return a copy with local rank and local size, from the host names of all processes by
        rank.
        """
        beside = [rank for rank, host in enumerate(hosts) if host == hosts[self.rank]]
        local_rank = self.local_rank
        if local_rank is None:
            local_rank = beside.index(self.rank)
        return replace(self, local_rank=local_rank, local_world_size=len(beside))


_SIGNS = {"WORLD_SIZE", "RANK", "LOCAL_RANK", *(variables.size for variables in _LAUNCHERS)}
"""Variables of which each launcher but mpi4py sets one."""


def find_launch() -> Launch | None:
    """Return the launch described by the environment; None without a launcher.

    The variables of torchrun come first, as for `accelerate`.

    Raises:
        RuntimeError: A variable is not a number, is out of range, or is missing.
    """
    # Most processes have no launcher.
    if os.environ.keys().isdisjoint(_SIGNS) and loaded("mpi4py.MPI") is None:
        return None
    launch = _of_torchrun() or _of_other_launchers() or _of_lightning() or _of_mpi4py()
    if launch is None:
        _refuse_half_a_place()
    else:
        launch.check()
    return launch


def _of_torchrun() -> Launch | None:
    """Read the variables of torchrun, which other launchers set too."""
    if not _are_set("WORLD_SIZE", "RANK"):
        return None
    launch = _read(_TORCHRUN)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return replace(launch, launcher="torchrun")

    # A PyTorchJob has one process in each pod.
    if launch.local_rank is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        return replace(launch, launcher="Kubeflow", local_rank=0, local_world_size=1)
    return launch


def _of_other_launchers() -> Launch | None:
    """Read the first variables that say that there are several processes."""
    for variables in _LAUNCHERS:
        if (
            not _are_set(variables.size, variables.rank, *variables.needed)
            or number_in(variables.size, 1) == 1
        ):
            continue
        launch = _read(variables)
        if variables is not _SLURM:
            return launch

        # A batch script and an interactive shell have the variables of tasks that have not been
        # started.
        if is_batch_script() or os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive"):
            continue
        if number_in("SLURM_NNODES", 0) == 1:
            return replace(launch, local_world_size=launch.world_size)
        return launch
    return None


def _of_lightning() -> Launch | None:
    """Read the variables with which `lightning.Trainer` and `Fabric` start the script again on
    the first machine.
    """
    if not _are_set("WORLD_SIZE", "LOCAL_RANK", "NODE_RANK") or number_in("NODE_RANK", 0) > 0:
        return None
    size = number_in("WORLD_SIZE", 1)
    rank = number_in("LOCAL_RANK", 0)
    return Launch("Lightning", size, rank, rank, size) if size > 1 else None


def _of_mpi4py() -> Launch | None:
    """Read the communicator of mpi4py, for launchers without variables, if the script has
    initialized MPI.
    """
    module = loaded("mpi4py.MPI")
    if module is None or not module.Is_initialized() or module.Is_finalized():
        return None
    size = module.COMM_WORLD.Get_size()
    return Launch("mpi4py", size, module.COMM_WORLD.Get_rank()) if size > 1 else None


def _refuse_half_a_place() -> None:
    """Refuse a world size without a rank, and a rank without a world size, unless the script has
    made the group.
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
    for name in ("RANK", "LOCAL_RANK"):
        if number_in(name, 0) > 0:
            raise RuntimeError(
                f"{name}={os.environ[name]} is set, but WORLD_SIZE is not. {_REMEDY}"
            )


def is_batch_script() -> bool:
    """Return True in the batch script of a SLURM job, outside the steps that srun makes."""
    return (
        "SLURMD_NODENAME" in os.environ
        and not {"SLURM_STEP_ID", "SLURM_STEPID"} & os.environ.keys()
    )


def _read(variables: _Variables) -> Launch:
    return Launch(
        variables.launcher,
        number_in(variables.size, 1),
        number_in(variables.rank, 0),
        _number_if_set(variables.local_rank),
        _number_if_set(variables.local_size),
        variables,
    )


def number_in(variable: str, default: int) -> int:
    """Return the whole number in an environment variable.

    Raises:
        RuntimeError: It is not a whole number.
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
        RuntimeError: It is not a valid port.
    """
    port = number_in(variable, 0)
    if not 1 <= port <= 65535:
        raise RuntimeError(
            f"The environment variable {variable} is not a valid port: "
            f"{os.environ.get(variable)!r}."
        )
    return port


def port_of_job() -> int:
    """Return a port that all processes of a job derive alike from the job's name; 29500 without
    one.
    """
    for variable in (
        "PMIX_NAMESPACE",
        "OMPI_MCA_ess_base_jobid",
        "PMI_JOBID",
        "HYDRA_JOBID",
        "SLURM_JOB_ID",
    ):
        if os.environ.get(variable):
            return 20000 + zlib.crc32(os.environ[variable].encode()) % 10000
    return 29500


def _are_set(*names: str) -> bool:
    return all(os.environ.get(name, "").strip() for name in names)


def _number_if_set(name: str) -> int | None:
    return number_in(name, 0) if _are_set(name) else None
