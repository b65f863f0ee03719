"""Which of Lightning's cluster environments a run is given, so that it neither looks for one nor starts processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .process import ProcessEnvironment

_NAMES = {
    "torchrun": "TorchElasticEnvironment",
    "SLURM": "SLURMEnvironment",
    "LSF": "LSFEnvironment",
    "mpi4py": "MPIEnvironment",
    "Kubeflow": "KubeflowEnvironment",
}


def environment_name(process: ProcessEnvironment) -> str:
    """The class that stands for the launcher; machines with different numbers of processes are not for Lightning's.

    Args:
        process: where this process stands.
    """
    even = process.world_size % process.local_world_size == 0
    known = _NAMES.get(process.launcher or "") if even else None
    return known or "GivenEnvironment"


def cluster_plugins(process: ProcessEnvironment, environment: str) -> list[Any]:
    """Return what `lightning.Trainer(plugins=)` is given for it.

    Args:
        process: where this process stands.
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
