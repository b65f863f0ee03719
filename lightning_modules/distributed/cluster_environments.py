"""Cluster environments of Lightning: the ranks of a process and the address of rank 0."""

from __future__ import annotations

import os
from typing import Any

from ..internals.lightning_import import ClusterEnvironment, SLURMEnvironment, environments


class GivenEnvironment(ClusterEnvironment):
    """As `LightningEnvironment`, but with given ranks, and without starting processes.

    Args:
        rank: Rank of this process.
        local_rank: Rank of this process on its machine.
        world_size: Number of processes.
        node_rank: Number of this machine.
    """

    def __init__(self, *, rank: int, local_rank: int, world_size: int, node_rank: int = 0) -> None:
        super().__init__()
        self._rank, self._local_rank, self._world_size, self._node_rank = rank, local_rank, world_size, node_rank

    @property
    def creates_processes_externally(self) -> bool:
        """Return True."""
        return True

    @property
    def main_address(self) -> str:
        """Return MASTER_ADDR, by default this machine."""
        return os.environ.get("MASTER_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        """Return MASTER_PORT, by default that of torch."""
        return int(os.environ.get("MASTER_PORT", "29500"))

    @staticmethod
    def detect() -> bool:
        """Return False: it is never chosen by itself."""
        return False

    def world_size(self) -> int:
        """Return the number of processes."""
        return self._world_size

    def set_world_size(self, size: int) -> None:
        """Do nothing: it is given."""

    def global_rank(self) -> int:
        """Return the rank of this process."""
        return self._rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: it is given."""

    def local_rank(self) -> int:
        """Return the rank of this process on its machine."""
        return self._local_rank

    def node_rank(self) -> int:
        """Return the number of this machine."""
        return self._node_rank


class SrunEnvironment(SLURMEnvironment):
    """As `SLURMEnvironment`, but accepts the tasks as srun started them, and handles no signals.

    Args:
        tasks: number of tasks on this machine; Lightning requires `--ntasks-per-node`, which srun does not.
    """

    def __init__(self, tasks: int) -> None:
        os.environ.setdefault("SLURM_NTASKS_PER_NODE", str(tasks))
        super().__init__(auto_requeue=False)

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Do nothing: a step may have fewer nodes and tasks than its job."""


def environment_of_launcher(launcher: str | None, tasks: int) -> Any:
    """Return Lightning's environment for a launcher; None without one.

    Args:
        launcher: `torchrun`, `SLURM`, `LSF`, `mpi4py` or `Kubeflow`; others have none.
        tasks: number of processes on this machine.

    Raises:
        ValueError: The launcher's variables are not those that Lightning reads.
    """
    if launcher == "SLURM":
        return SrunEnvironment(tasks)
    names = {"torchrun": "TorchElastic", "LSF": "LSF", "mpi4py": "MPI", "Kubeflow": "Kubeflow"}
    return getattr(environments, f"{names[launcher]}Environment")() if launcher in names else None
