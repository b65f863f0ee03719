"""What Lightning calls a cluster environment: where a process stands among all, and where the first one is found."""

from __future__ import annotations

import os
from typing import Any

from ..internals.lightning_import import ClusterEnvironment, SLURMEnvironment, environments

__all__ = ["GivenEnvironment", "SrunEnvironment", "environment_of_launcher"]


class GivenEnvironment(ClusterEnvironment):
    """As `LightningEnvironment`, but it is told where the process stands, and never starts processes.

    Args:
        rank: Number of this process among all.
        local_rank: Number of this process among those of its machine.
        world_size: How many processes there are.
        node_rank: Number of this machine.
    """

    def __init__(self, *, rank: int, local_rank: int, world_size: int, node_rank: int = 0) -> None:
        super().__init__()
        self._rank, self._local_rank, self._world_size, self._node_rank = rank, local_rank, world_size, node_rank

    @property
    def creates_processes_externally(self) -> bool:
        """True."""
        return True

    @property
    def main_address(self) -> str:
        """MASTER_ADDR, or this machine."""
        return os.environ.get("MASTER_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        """MASTER_PORT, or what torch takes without it."""
        return int(os.environ.get("MASTER_PORT", "29500"))

    @staticmethod
    def detect() -> bool:
        """False: it has to be told."""
        return False

    def world_size(self) -> int:
        """Return how many processes there are."""
        return self._world_size

    def set_world_size(self, size: int) -> None:
        """Nothing: it is known."""

    def global_rank(self) -> int:
        """Return number of this process among all."""
        return self._rank

    def set_global_rank(self, rank: int) -> None:
        """Nothing: it is known."""

    def local_rank(self) -> int:
        """Return number of this process among those of its machine."""
        return self._local_rank

    def node_rank(self) -> int:
        """Return number of this machine."""
        return self._node_rank


class SrunEnvironment(SLURMEnvironment):
    """As `SLURMEnvironment`, but it takes the tasks as srun started them, and leaves signals alone.

    Args:
        tasks: how many run on this machine; Lightning insists on `--ntasks-per-node`, which srun can do without.
    """

    def __init__(self, tasks: int) -> None:
        os.environ.setdefault("SLURM_NTASKS_PER_NODE", str(tasks))
        super().__init__(auto_requeue=False)

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Nothing: a step may have fewer nodes and tasks than its job."""


def environment_of_launcher(launcher: str | None, tasks: int) -> Any:
    """Lightning's environment for a launcher; None where there is none.

    Args:
        launcher: `torchrun`, `SLURM`, `LSF`, `mpi4py` or `Kubeflow`; others have none.
        tasks: how many processes run on this machine.

    Raises:
        ValueError: The launcher's variables are not those that Lightning reads.
    """
    if launcher == "SLURM":
        return SrunEnvironment(tasks)
    names = {"torchrun": "TorchElastic", "LSF": "LSF", "mpi4py": "MPI", "Kubeflow": "Kubeflow"}
    return getattr(environments, f"{names[launcher]}Environment")() if launcher in names else None
