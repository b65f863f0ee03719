"""Choose Lightning's cluster environment for a run, so that it neither detects one nor starts processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .process import ProcessEnvironment

_NAMES = {"torchrun": "TorchElastic", "SLURM": "SLURM", "LSF": "LSF", "mpi4py": "MPI", "Kubeflow": "Kubeflow"}


def environment_name(process: ProcessEnvironment) -> str:
    """Return the name of the launcher's class; Lightning's own need equally many processes on each machine.

    Args:
        process: this process.
    """
    even = process.world_size % process.local_world_size == 0
    return f"{_NAMES.get(process.launcher or '', 'Given') if even else 'Given'}Environment"


def cluster_plugins(process: ProcessEnvironment, environment: str) -> list[Any]:
    """Return the value of `lightning.Trainer(plugins=)`.

    Args:
        process: this process.
        environment: the class, see `environment_name`.
    """
    from ...lightning_modules.distributed.cluster_environments import GivenEnvironment, environment_of_launcher

    if environment != "GivenEnvironment":
        return [environment_of_launcher(process.launcher, process.local_world_size)]
    node = process.rank // process.local_world_size
    told = GivenEnvironment(
        rank=process.rank, local_rank=process.local_rank, world_size=process.world_size, node_rank=node
    )
    return [told]
