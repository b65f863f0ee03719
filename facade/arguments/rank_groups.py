"""Which ranks share a model, and which of them read the same batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from .parallelism import ParallelismConfig, read_parallelism

if TYPE_CHECKING:
    from .. import TrainingArguments
    from .accelerator import AcceleratorConfig

_PARALLELISM_OF_MODEL = "_parallelism_of_model"
"""Attribute of the arguments that `set_parallelism_of_model` writes."""


def copies_of_batches(args: TrainingArguments) -> int:
    """Return the number of ranks that get the same batches.

    These ranks are consecutive: with 2, ranks 0 and 1 get the same batches, and so do 2 and 3.
    """
    groups = effective_parallelism(args)
    if groups is None:
        return 1
    copies = groups.non_data_parallel_size
    return copies if args.world_size % copies == 0 else 1


def order_seed(args: TrainingArguments) -> int:
    """Return the seed of the order of the samples: `data_seed`, or `seed` if that is not set."""
    if args.data_seed is None:
        return args.seed
    return args.data_seed


def sharding_options(
    args: TrainingArguments, config: AcceleratorConfig, even_batches: bool
) -> dict[str, Any]:
    """Return the options of `build_loader` that divide batches among the ranks."""
    return {
        "split_batches": config.split_batches,
        "dispatch_batches": config.dispatch_batches,
        "seedable": config.use_seedable_sampler,
        # As in accelerate, torch's initial seed if it is None.
        "seed": args.data_seed,
        "even_batches": even_batches,
        "rank": args.process_index,
        "world_size": args.world_size,
        "copies": copies_of_batches(args),
    }


def data_parallel_size(args: TrainingArguments) -> int:
    """Return the number of ranks that get different batches."""
    return args.world_size // copies_of_batches(args)


def ranks_counted_together(args: TrainingArguments) -> int:
    """Return the number of ranks whose items are counted together.

    A loss that was divided by these items is multiplied by this number, because averaging the
    gradients over the ranks divides by it once more.
    """
    if args.average_tokens_across_devices:
        return data_parallel_size(args)
    return 1


def data_parallel_rank(args: TrainingArguments) -> int:
    """Return the data-parallel rank of this process, from 0."""
    return args.process_index // copies_of_batches(args)


def samples_of_rank(args: TrainingArguments, batch_size: int) -> int:
    """Return the samples of a batch that a rank gets: all, or a share with `split_batches`."""
    from ...lightning_modules.data.batch_samplers import batch_size_of_rank

    config = cast("AcceleratorConfig", args.accelerator_config)
    return batch_size_of_rank(batch_size, data_parallel_size(args), config.split_batches)


def parts_of_sequences(args: TrainingArguments) -> int:
    """Return the number of ranks that split a sequence, by `cp_size` or `sp_size`."""
    groups = effective_parallelism(args)
    return 1 if groups is None else groups.cp_size * groups.sp_size


def spreads_model(args: TrainingArguments) -> bool:
    """Return True if ranks hold parts of the model or of sequences, by `parallelism_config`."""
    groups = effective_parallelism(args)
    return groups is not None and groups.total_size > groups.dp_replicate_size


def effective_parallelism(args: TrainingArguments) -> ParallelismConfig | None:
    """Return the parallelism of a model that the script parallelized, or `parallelism_config`.

    Returns None for an invalid config, which was set after the construction; `train` reports it.
    """
    config = vars(args).get(_PARALLELISM_OF_MODEL) or args.parallelism_config
    if config is None or isinstance(config, ParallelismConfig):
        return config
    try:
        return read_parallelism(config)
    except ValueError:
        return None


def set_parallelism_of_model(args: object, groups: ParallelismConfig | None) -> None:
    """Store the parallelism of a model that the script parallelized before, or None."""
    attributes = vars(args)
    attributes.pop(_PARALLELISM_OF_MODEL, None)
    if groups is not None:
        attributes[_PARALLELISM_OF_MODEL] = groups


def was_parallelized(args: object) -> bool:
    """Return True if the model was parallelized before the Trainer got it."""
    return vars(args).get(_PARALLELISM_OF_MODEL) is not None
