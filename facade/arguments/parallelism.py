"""Read `parallelism_config`: the sizes of the groups of ranks that share a model or a sequence."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from types import NoneType
from typing import Any, cast

from ...lightning_modules.common.suggestions import did_you_mean
from ..distributed.process import launched_world_size
from .argument import with_article

BACKENDS = {"cp_backend": ("torch",), "sp_backend": ("deepspeed",)}
"""Supported backends of context and sequence parallelism."""

ROTATIONS = ("allgather", "alltoall")
"""Exchange of keys and values in ring attention: all at once, or between neighbours."""


@dataclass(frozen=True)
class ContextParallelConfig:
    """`accelerate.utils.TorchContextParallelConfig`, but frozen, and without environment."""

    cp_comm_strategy: str = "allgather"
    """One of `ROTATIONS`."""


@dataclass(frozen=True)
class SequenceParallelConfig:
    """As `accelerate.utils.DeepSpeedSequenceParallelConfig`, not read from the environment."""

    sp_seq_length: int | None = None
    """Length of the sequences of all batches; not read, as lengths may differ."""
    sp_seq_length_is_variable: bool | None = True
    sp_attn_implementation: str | None = None
    """None or `sdpa`: the model has to use torch's attention."""


@dataclass(frozen=True)
class ParallelismConfig:
    """As `accelerate.ParallelismConfig`, frozen, not read from the environment.

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
    """The only name in accelerate. The exchange is torch's own and does not need DeepSpeed."""
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

    @property
    def dp_replicate_enabled(self) -> bool:
        """True if there are several copies of the model."""
        return self.dp_replicate_size > 1

    @property
    def dp_shard_enabled(self) -> bool:
        """True if a copy is sharded."""
        return self.dp_shard_size > 1

    @property
    def tp_enabled(self) -> bool:
        """True if layers are split."""
        return self.tp_size > 1

    @property
    def cp_enabled(self) -> bool:
        """True if sequences are split for ring attention."""
        return self.cp_size > 1

    @property
    def sp_enabled(self) -> bool:
        """True if sequences are split for Ulysses attention."""
        return self.sp_size > 1

    @property
    def sequence_argument(self) -> str:
        """Name of the argument that splits sequences: `cp_size`, `sp_size`, or empty."""
        if self.cp_enabled:
            return "cp_size"
        if self.sp_enabled:
            return "sp_size"
        return ""

    @property
    def rotation(self) -> str:
        """See `ContextParallelConfig.cp_comm_strategy`."""
        return (self.cp_handler or ContextParallelConfig()).cp_comm_strategy

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a new dict, from which an equal config can be made."""
        return asdict(self)


NAMES = tuple(item.name for item in fields(ParallelismConfig))
SIZES = tuple(name for name in NAMES if name.endswith("_size"))


_HANDLERS: dict[str, type[ContextParallelConfig] | type[SequenceParallelConfig]] = {
    "cp_handler": ContextParallelConfig,
    "sp_handler": SequenceParallelConfig,
}


def read_parallelism_config(name: str, value: object) -> ParallelismConfig:
    """Read the argument `parallelism_config`, see `argument.Reader`."""
    config = read_parallelism(value)
    processes = launched_world_size()
    total = config.total_size
    if processes > 1 and total not in (1, processes):
        raise ValueError(
            f"{name}: {_shown_sizes(config)} needs {total} processes, but there are {processes}. "
            f"Change the sizes, or start {total}."
        )
    if config.tp_enabled and config.dp_replicate_enabled:
        raise NotImplementedError(
            f"{name}: dp_replicate_size={config.dp_replicate_size} with tp_size={config.tp_size}: "
            "Lightning's mesh has two dimensions; raise dp_shard_size instead"
        )
    return config


def read_parallelism(value: object) -> ParallelismConfig:
    """Convert a dict, JSON text or an object with the same attributes to a `ParallelismConfig`.

    Raises:
        ValueError: It is none of these, or has unknown keys or invalid values; one sentence for
            each.
    """
    settings: object = value
    if isinstance(value, str) and value.strip().startswith("{"):
        with contextlib.suppress(json.JSONDecodeError):
            settings = json.loads(value)
    elif _is_config_of_accelerate(value):
        settings = {name: getattr(value, name) for name in NAMES if hasattr(value, name)}
    if not isinstance(settings, Mapping):
        kind = with_article(type(value).__name__)
        raise ValueError(
            f"parallelism_config={value!r} is {kind}; pass a dict such as {{'tp_size': 2}}, or one "
            "written as JSON."
        )

    problems: list[str] = []
    known_settings: dict[str, Any] = {}
    for key, setting in cast("Mapping[str, Any]", settings).items():
        if key not in NAMES:
            problems.append(
                f"{key!r} is not a known key.{did_you_mean(key, NAMES)} Known: {', '.join(NAMES)}."
            )
        elif key in _HANDLERS:
            known_settings[key] = _read_handler(setting, _HANDLERS[key])
        elif setting is not None:
            known_settings[key] = setting

    config = ParallelismConfig(**known_settings)
    problems = problems or list(_value_problems(config)) or list(_combination_problems(config))
    if problems:
        raise ValueError(*[f"parallelism_config: {problem}" for problem in problems])
    return config


def _read_handler(
    value: object, cls: type[ContextParallelConfig] | type[SequenceParallelConfig]
) -> object:
    """Convert a dict or an object with the same attributes; return others unchanged."""
    names = [item.name for item in fields(cls)]
    if isinstance(value, Mapping):
        settings = cast("Mapping[str, Any]", value)
        return cls(**settings) if set(settings) <= set(names) else settings
    if not isinstance(value, type) and all(hasattr(value, name) for name in names):
        return cls(**{name: getattr(value, name) for name in names})
    return value


def _value_problems(config: ParallelismConfig) -> Iterator[str]:
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
    attention = getattr(config.sp_handler, "sp_attn_implementation", None)
    if attention not in (None, "sdpa"):
        yield (
            f"sp_handler: sp_attn_implementation={attention!r} is not supported. Pass 'sdpa', and "
            "load the model with it."
        )
    exchange = getattr(config.cp_handler, "cp_comm_strategy", ROTATIONS[0])
    if exchange not in ROTATIONS:
        suggestion = did_you_mean(exchange, ROTATIONS)
        yield (
            f"cp_handler: cp_comm_strategy={exchange!r} is not known.{suggestion} Choose from: "
            f"{', '.join(ROTATIONS)}."
        )


def _combination_problems(config: ParallelismConfig) -> Iterator[str]:
    if config.cp_enabled and config.sp_enabled:
        yield (
            f"cp_size={config.cp_size} and sp_size={config.sp_size} cannot be combined: both split "
            "sequences. Use one."
        )
    split = config.tp_enabled or config.sequence_argument
    if split and config.dp_replicate_enabled and not config.dp_shard_enabled:
        yield (
            f"{_shown_sizes(config)} needs a sharded model: set dp_shard_size above 1 and "
            "dp_replicate_size to 1."
        )


def _shown_sizes(config: ParallelismConfig) -> str:
    sizes = {name: getattr(config, name) for name in SIZES}
    return " * ".join(f"{name}={size}" for name, size in sizes.items() if size > 1)


def _is_config_of_accelerate(value: object) -> bool:
    """Return whether a value is a `ParallelismConfig`, ours or that of accelerate."""
    if isinstance(value, type):
        return False
    return hasattr(value, "dp_shard_size") and hasattr(value, "tp_size")
