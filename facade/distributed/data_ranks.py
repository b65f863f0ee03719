"""Which processes read which data: those that share layers, or sequences, get the same batches."""

from __future__ import annotations

from typing import Any

from ..arguments.parallelism import ParallelismConfig, parallelism_faults, read_parallelism

__all__ = ["copies_of_batches", "data_rank", "data_ranks", "parts_of_sequences", "spreads_model"]


def copies_of_batches(args: Any) -> int:
    """How many processes get the same batches, see `ParallelismConfig.non_data_parallel_size`.

    Their numbers follow one another: with 2, processes 0 and 1 get the same batches, so do 2 and 3.
    """
    groups = _groups(args)
    copies = 1 if groups is None else groups.non_data_parallel_size
    return copies if copies > 1 and args.world_size % copies == 0 else 1


def data_ranks(args: Any) -> int:
    """How many different batches are worked on at a time: the number of processes, where layers are not split."""
    return args.world_size // copies_of_batches(args)


def data_rank(args: Any) -> int:
    """Which of these this process works on, from 0."""
    return args.process_index // copies_of_batches(args)


def parts_of_sequences(args: Any) -> int:
    """Over how many processes each sequence is split in training, see `ParallelismConfig.cp_size`."""
    groups = _groups(args)
    return 1 if groups is None else groups.cp_size


def spreads_model(args: Any) -> bool:
    """Whether `parallelism_config` asks for more than copies of the model, so that processes have parts of it."""
    groups = _groups(args)
    return groups is not None and groups.total_size > groups.dp_replicate_size


def _groups(args: Any) -> ParallelismConfig | None:
    """`parallelism_config`, also where it was set later; None where it is wrong, which is said elsewhere."""
    given = getattr(args, "parallelism_config", None)
    if given is None or isinstance(given, ParallelismConfig):
        return given
    read = read_parallelism(given)
    return read if not parallelism_faults(read, 1) else None
