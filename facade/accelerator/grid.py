"""The place of this process in the grid of `parallelism_config`."""

from __future__ import annotations

from typing import Any

from ..arguments.parallelism import data_rank, read_parallelism
from .link import RunLink
from .processes import Processes
from .refusals import refusal


class Grid(Processes):
    """The members of `accelerate.Accelerator` about the dimensions of parallelism.

    Processes that share the layers of one copy of the model have consecutive numbers, and so have, of the copies, those
    that shard one among them.
    """

    _link: RunLink | None = None

    @property
    def parallelism_config(self) -> Any:
        """That of the arguments."""
        return self.args.parallelism_config

    @property
    def torch_device_mesh(self) -> Any:
        """Lightning's, while it runs with one; otherwise None."""
        return None if self._link is None else self._link.device_mesh

    @property
    def tensor_parallel_rank(self) -> int:
        """Among the processes that split layers; 0 where none are split.

        Raises:
            RuntimeError: there is no `parallelism_config`; `hasattr` says no.
        """
        groups = self._groups("tensor_parallel_rank")
        return self.process_index % groups.tp_size

    @property
    def data_parallel_rank(self) -> int:
        """Among the copies of the model; 0 where there is one. Otherwise see `tensor_parallel_rank`."""
        groups = self._groups("data_parallel_rank")
        return data_rank(self.args) // groups.dp_shard_size if groups.dp_replicate_enabled else 0

    @property
    def data_parallel_shard_rank(self) -> int:
        """Among the processes that shard one copy; 0 where they do not. Otherwise see `tensor_parallel_rank`."""
        groups = self._groups("data_parallel_shard_rank")
        return data_rank(self.args) % groups.dp_shard_size

    def _groups(self, name: str) -> Any:
        groups = read_parallelism(self.args.parallelism_config)
        if groups is None:
            raise refusal(name)
        return groups
