"""Lightning cluster environments, which provide the ranks and the address of rank 0."""

from __future__ import annotations

import os

from ..internals.lightning_import import (
    ClusterEnvironment,
    LSFEnvironment,
    MPIEnvironment,
    SLURMEnvironment,
)


class FixedRankEnvironment(ClusterEnvironment):
    """Cluster environment of a process with known ranks. It does not start other processes.

    Args:
        rank: Rank of this process.
        local_rank: Rank of this process on its machine.
        world_size: Number of processes.
        node_rank: Number of this machine.
    """

    def __init__(self, *, rank: int, local_rank: int, world_size: int, node_rank: int = 0) -> None:
        super().__init__()
        self._rank = rank
        self._local_rank = local_rank
        self._world_size = world_size
        self._node_rank = node_rank

    @property
    def creates_processes_externally(self) -> bool:
        """Return True: the other processes are started by a launcher."""
        return True

    @property
    def main_address(self) -> str:
        """Return MASTER_ADDR. The default is this machine."""
        return os.environ.get("MASTER_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        """Return MASTER_PORT. The default is torch's default port."""
        return int(os.environ.get("MASTER_PORT", "29500"))

    @staticmethod
    def detect() -> bool:
        """Return False, so that Lightning never selects it automatically."""
        return False

    def world_size(self) -> int:
        """Return the number of processes."""
        return self._world_size

    def set_world_size(self, size: int) -> None:
        """Do nothing: the value is fixed."""

    def global_rank(self) -> int:
        """Return the rank of this process."""
        return self._rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the value is fixed."""

    def local_rank(self) -> int:
        """Return the rank of this process on its machine."""
        return self._local_rank

    def node_rank(self) -> int:
        """Return the number of this machine."""
        return self._node_rank


def address_of_launcher(launcher: str) -> tuple[str, int]:
    """Return the address and port of rank 0, as found by Lightning's class for a launcher.

    Args:
        launcher: `SLURM`, `LSF` or `mpi4py`.

    Raises:
        ValueError: Lightning cannot read the launcher's environment variables.
    """
    environment: ClusterEnvironment
    if launcher == "SLURM":
        # Lightning requires `--ntasks-per-node`, but srun does not.
        os.environ.setdefault("SLURM_NTASKS_PER_NODE", "1")
        # Rank 0 is on the first node of the job step, which may differ from that of the job.
        nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST")
        if nodes:
            os.environ["SLURM_NODELIST"] = nodes
        environment = SLURMEnvironment(auto_requeue=False)
    elif launcher == "LSF":
        environment = LSFEnvironment()
    else:
        environment = MPIEnvironment()
    return environment.main_address, environment.main_port
