"""Sizes of the groups of ranks that share model and data, and the ranks that read the same
batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from types import NoneType
from typing import Any

from ...lightning_modules.common.suggestions import did_you_mean
from ..distributed.process import launched_world_size
from .argument import with_article

BACKENDS = {"cp_backend": ("torch",), "sp_backend": ("deepspeed",)}
"""Supported backends of context and sequence parallelism."""

ROTATIONS = ("allgather", "alltoall")
"""Exchange of keys and values in ring attention: all at once, or between neighbours."""


@dataclass(frozen=True)
class ContextParallelConfig:
    """As `accelerate.utils.TorchContextParallelConfig`, but frozen, and not taken from the
    environment.
    """

    cp_comm_strategy: str = "allgather"
    """One of `ROTATIONS`."""


@dataclass(frozen=True)
class SequenceParallelConfig:
    """As `accelerate.utils.DeepSpeedSequenceParallelConfig`, but frozen, and not taken from the
    environment.
    """

    sp_seq_length: int | None = None
    """Positions of all batches; they may have any number of them here."""
    sp_seq_length_is_variable: bool | None = True
    sp_attn_implementation: str | None = None
    """None or `sdpa`: the model's attention has to be that of torch."""


def _is_several(size: str, doc: str) -> Any:
    """Return a property that compares a size with 1."""
    return property(lambda config: getattr(config, size) > 1, doc=doc)


@dataclass(frozen=True)
class ParallelismConfig:
    """As `accelerate.ParallelismConfig`, but frozen, made of plain values, and not taken from the
    environment.

    The product of the sizes is the number of processes.
    """

    dp_replicate_size: int = 1
    """Copies of the model, each of which may be sharded."""
    dp_shard_size: int = 1
    """Processes over which one copy is sharded (FSDP)."""
    tp_size: int = 1
    """Processes over which each layer is split (tensor parallel)."""
    cp_size: int = 1
    """Processes over which a sequence is split, ring attention (context parallel)."""
    cp_backend: str = "torch"
    cp_handler: ContextParallelConfig | None = None
    """Exchange of the parts of a sequence between ranks; None is `allgather`."""
    sp_size: int = 1
    """Processes over which a sequence is split, Ulysses attention (sequence parallel)."""
    sp_backend: str = "deepspeed"
    """The reference's only name for it; here the exchange is torch's own, and DeepSpeed is not
    needed.
    """
    sp_handler: SequenceParallelConfig | None = None
    """Attention of the model; None is `sdpa`."""

    @property
    def total_size(self) -> int:
        """Number of ranks that these sizes require."""
        return self.data_parallel_size * self.non_data_parallel_size

    @property
    def data_parallel_size(self) -> int:
        """Number of different batches in a step."""
        return self.dp_replicate_size * self.dp_shard_size

    @property
    def non_data_parallel_size(self) -> int:
        """Number of ranks that get the same batch."""
        return self.tp_size * self.cp_size * self.sp_size

    dp_replicate_enabled = _is_several(
        "dp_replicate_size", "True if there are several copies of the model."
    )
    dp_shard_enabled = _is_several("dp_shard_size", "True if a copy is sharded.")
    tp_enabled = _is_several("tp_size", "True if layers are split.")
    cp_enabled = _is_several("cp_size", "True if sequences are split for ring attention.")
    sp_enabled = _is_several("sp_size", "True if sequences are split for Ulysses attention.")

    @property
    def splits_sequences(self) -> str:
        """Name of the argument that splits sequences: `cp_size`, `sp_size`, or empty."""
        return "cp_size" if self.cp_enabled else "sp_size" if self.sp_enabled else ""

    @property
    def rotation(self) -> str:
        """See `ContextParallelConfig.cp_comm_strategy`."""
        return (self.cp_handler or ContextParallelConfig()).cp_comm_strategy

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a new dict, from which an equal config can be made."""
        return asdict(self)


NAMES = tuple(item.name for item in fields(ParallelismConfig))
SIZES = tuple(name for name in NAMES if name.endswith("_size"))


def read_parallelism(value: Any) -> Any:
    """Make a `ParallelismConfig` of a dict, of JSON text, or of an object with the same attributes.

    Values that cannot be read are returned as they are, for `parallelism_faults` to report.
    """
    if isinstance(value, str) and value.strip().startswith("{"):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return value
    if isinstance(value, Mapping):
        given: dict[str, Any] = dict(value)
    elif not isinstance(value, type) and all(
        hasattr(value, name) for name in ("dp_shard_size", "tp_size")
    ):
        given = {name: getattr(value, name) for name in NAMES if hasattr(value, name)}
    else:
        return value
    given = {name: size for name, size in given.items() if size is not None}
    for name, cls in _HANDLERS.items():
        if name in given:
            given[name] = _read_handler(given[name], cls)
    return ParallelismConfig(**given) if set(given) <= set(NAMES) else value


_HANDLERS: dict[str, Any] = {
    "cp_handler": ContextParallelConfig,
    "sp_handler": SequenceParallelConfig,
}


def _read_handler(value: Any, cls: Any) -> Any:
    """Make an object of a class from a dict or an object with the same attributes; return others
    as they are.
    """
    names = [item.name for item in fields(cls)]
    if isinstance(value, Mapping):
        return cls(**value) if set(value) <= set(names) else value
    if not isinstance(value, type) and all(hasattr(value, name) for name in names):
        return cls(**{name: getattr(value, name) for name in names})
    return value


def read_parallelism_config(name: str, value: Any) -> ParallelismConfig:
    """Read the argument `parallelism_config`, see `argument.Reader`."""
    config = read_parallelism(value)
    faults = parallelism_faults(config, launched_world_size())
    if faults:
        raise ValueError(*faults)
    if config.tp_enabled and config.dp_replicate_enabled:
        raise NotImplementedError(
            f"{name}: dp_replicate_size={config.dp_replicate_size} with tp_size={config.tp_size}: "
            "Lightning's mesh has two dimensions; raise dp_shard_size instead"
        )
    return config


def parallelism_faults(config: Any, processes: int) -> list[str]:
    """Return one sentence for each error in `parallelism_config`.

    Args:
        config: after `read_parallelism`.
        processes: the launcher's number of processes; 1 skips the check of the total size.
    """
    if isinstance(config, ParallelismConfig):
        faults = list(_wrong_values(config)) or list(_wrong_together(config, processes))
        return [f"parallelism_config: {fault}" for fault in faults]
    if isinstance(config, Mapping):
        unknown = [
            f"{key!r}, which is not known.{did_you_mean(key, NAMES)}"
            for key in config
            if key not in NAMES
        ]
        return [
            f"parallelism_config has the key {said} Known: {', '.join(NAMES)}." for said in unknown
        ]
    if config is None:
        return []
    kind = with_article(type(config).__name__)
    return [
        f"parallelism_config={config!r} is {kind}; pass a dict such as {{'tp_size': 2}}, or one "
        "written as JSON."
    ]


def _wrong_values(config: ParallelismConfig) -> Iterator[str]:
    for name in SIZES:
        size = getattr(config, name)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            yield f"{name}={size!r} must be a whole number, at least 1."
    for name, choices in BACKENDS.items():
        if getattr(config, name) not in choices:
            yield (
                f"{name}={getattr(config, name)!r} is not known. Choose from: {', '.join(choices)}."
            )
    for name, kind in _HANDLERS.items():
        if not isinstance(getattr(config, name), (kind, NoneType)):
            keys = ", ".join(item.name for item in fields(kind))
            yield f"{name}={getattr(config, name)!r} must be a dict with keys of {keys}."
    given = getattr(config.sp_handler, "sp_attn_implementation", None)
    if given not in (None, "sdpa"):
        yield (
            f"sp_handler: sp_attn_implementation={given!r} is not split: pass 'sdpa', and load the "
            "model with it."
        )
    given = getattr(config.cp_handler, "cp_comm_strategy", ROTATIONS[0])
    if given not in ROTATIONS:
        near = did_you_mean(given, ROTATIONS)
        yield (
            f"cp_handler: cp_comm_strategy={given!r} is not known.{near} Choose from: "
            f"{', '.join(ROTATIONS)}."
        )


def _wrong_together(config: ParallelismConfig, processes: int) -> Iterator[str]:
    if config.cp_enabled and config.sp_enabled:
        yield (
            f"cp_size={config.cp_size} and sp_size={config.sp_size} both split sequences. Keep one."
        )
    sizes = " * ".join(
        f"{name}={getattr(config, name)}" for name in SIZES if getattr(config, name) > 1
    )
    split = config.tp_enabled or config.splits_sequences
    if split and config.dp_replicate_enabled and not config.dp_shard_enabled:
        yield (
            f"{sizes} needs a sharded model: set dp_shard_size above 1 and dp_replicate_size to 1."
        )
    if processes > 1 and config.total_size not in (1, processes):
        total = config.total_size
        yield (
            f"{sizes} makes {total} processes, but there are {processes}. Change the sizes, or "
            f"start {total}."
        )


def copies_of_batches(args: Any) -> int:
    """Return the number of ranks that get the same batches, see
    `ParallelismConfig.non_data_parallel_size`.

    These ranks are consecutive: with 2, ranks 0 and 1 get the same batches, and so do 2 and 3.
    """
    groups = groups_of(args)
    copies = 1 if groups is None else groups.non_data_parallel_size
    return copies if copies > 1 and args.world_size % copies == 0 else 1


def ways_of_sharing(args: Any, config: Any, even_batches: bool) -> dict[str, Any]:
    """Return the options of `build_loader` by which ranks share batches."""
    ways = {"split_batches": config.split_batches, "dispatch_batches": config.dispatch_batches}
    ways |= {
        "seedable": config.use_seedable_sampler,
        "seed": args.data_seed,
        "even_batches": even_batches,
    }
    return {
        **ways,
        "rank": args.process_index,
        "world_size": args.world_size,
        "copies": copies_of_batches(args),
    }


def data_ranks(args: Any) -> int:
    """Return the number of data-parallel ranks, which is the world size unless layers or
    sequences are split.
    """
    return args.world_size // copies_of_batches(args)


def data_rank(args: Any) -> int:
    """Return the data-parallel rank of this process, from 0."""
    return args.process_index // copies_of_batches(args)


def samples_of_rank(args: Any, batch_size: int) -> int:
    """Return the samples of a batch that a data-parallel rank gets: all, or a share with
    `split_batches`.
    """
    from ...lightning_modules.data.batch_samplers import batch_size_of_rank

    return batch_size_of_rank(batch_size, data_ranks(args), args.accelerator_config.split_batches)


def parts_of_sequences(args: Any) -> int:
    """Return the number of ranks over which a sequence is split in training, by `cp_size` or
    `sp_size`.
    """
    groups = groups_of(args)
    return 1 if groups is None else groups.cp_size * groups.sp_size


def spreads_model(args: Any) -> bool:
    """Return True if ranks hold parts of the model or of sequences, by `parallelism_config`."""
    groups = groups_of(args)
    return groups is not None and groups.total_size > groups.dp_replicate_size


def groups_of(args: Any) -> ParallelismConfig | None:
    """Return the groups of a model that was parallelized before, or else `parallelism_config`.

    None if the config, which may have been set later, is invalid; `parallelism_faults` reports it.
    """
    given = vars(args).get(_OF_MODEL) or args.parallelism_config
    if given is None or isinstance(given, ParallelismConfig):
        return given
    read = read_parallelism(given)
    return read if not parallelism_faults(read, 1) else None


def set_groups_of_model(args: Any, groups: ParallelismConfig | None) -> None:
    """Store the groups of a model that was parallelized before the Trainer got it; None if it
    was not.
    """
    vars(args).pop(_OF_MODEL, None)
    if groups is not None:
        vars(args)[_OF_MODEL] = groups


def is_spread_before(args: Any) -> bool:
    """Return True if the model was parallelized before the Trainer got it."""
    return vars(args).get(_OF_MODEL) is not None


_OF_MODEL = "_groups_of_model"
