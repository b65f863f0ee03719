"""The command `estimate`: estimate memory per device and traffic per step of a training."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import json
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from ...lightning_modules.common.suggestions import OptimizerNames
from ..command_line import CommandParser, count, scaled, spellings, whole
from .estimation import Estimate, best, compare
from .estimation import estimate as estimate_job
from .job import ATTENTIONS, GIB, PRECISIONS, SHARDING, Job
from .shapes import ModelShape
from .source import model_from_folder, model_of_size
from .tables import comparison_table, draw, estimate_table

_EXAMPLES = """examples:
  lightrainer estimate --params 7e9 --gpus 64 --fsdp full_shard --sequence 8192
  lightrainer estimate --model path/to/model --gpus 8 --batch 4 --compare
  lightrainer estimate --params 70e9 --gpus 64 --tp 8 --fsdp full_shard --json
  lightrainer estimate --params 7e9 --gpus 8 --cp 8 --sequence 131072

DeepSpeed, offload, hybrid_shard and the time of a step are not estimated.
docs/user/scaling.md describes what is measured and what is computed.
"""


def estimate(flags: Sequence[str]) -> int:
    """Print the memory and the traffic of a training.

    No weights are loaded, and only `--plot` writes a file.

    Args:
        flags: the options, see `--help`.

    Returns:
        0, the exit status, whether it fits or not; an error ends the program with 2.
    """
    parser = _make_parser()
    options = parser.parse_args(flags)
    try:
        job = _read_job(options)
        estimates = compare(job) if options.compare else [estimate_job(job)]
        if options.plot is not None:
            draw(estimates, options.plot)
    except (ValueError, TypeError, OSError, ImportError) as error:
        parser.error(str(error))

    if options.json:
        print(_as_json(estimates, is_comparison=options.compare))
    elif options.compare:
        print(comparison_table(estimates))
    else:
        print(estimate_table(estimates[0]))
    return 0


def _as_json(estimates: list[Estimate], *, is_comparison: bool) -> str:
    """Return estimates as JSON; a comparison has the best strategy, too."""
    recommended = best(estimates) if is_comparison else None
    summary = {
        "best": None if recommended is None else recommended.job.strategy,
        "estimates": [estimate.as_dict() for estimate in estimates],
    }
    return json.dumps(summary, indent=1)


def _read_job(options: Namespace) -> Job:
    """Return the training that the options describe."""
    values: dict[str, Any] = {}
    for field in fields(Job):
        if hasattr(options, field.name):
            values[field.name] = getattr(options, field.name)
    values["model"] = _read_model(options)
    values["fsdp"] = _read_fsdp(options.fsdp)
    # Devices that share sequences shard the model, as with `parallelism_config`.
    if values["fsdp"] is None and options.cp * options.sp > 1:
        values["fsdp"] = "full_shard"
    return Job(**values)


def _read_model(options: Namespace) -> ModelShape:
    """Return the shape of the model that the options describe."""
    names = ("layers", "hidden", "heads", "kv_heads", "intermediate", "vocabulary")
    dimensions = {name: getattr(options, name) for name in names}
    if options.model is None:
        return model_of_size(options.params, **dimensions)
    redundant = [name for name in ("params", *names) if getattr(options, name) is not None]
    if redundant:
        raise ValueError(
            f"model={options.model!r} determines {', '.join(redundant)}: leave out either model or "
            "these."
        )
    return model_from_folder(options.model)


def _read_fsdp(fsdp: str | None) -> str | None:
    """Return the kind of sharding in the argument `fsdp`; None without one."""
    words = (fsdp or "").split()
    if not words:
        return None
    sharding = [word for word in words if word != "auto_wrap"]
    if len(sharding) != 1 or sharding[0] not in SHARDING:
        raise ValueError(
            f"fsdp={fsdp!r} must be one of {', '.join(SHARDING)}, with or without auto_wrap."
        )
    return sharding[0]


def _make_parser() -> CommandParser:
    parser = CommandParser(
        "estimate",
        "Estimate how much memory a training needs on each device, and how much a device sends.",
        _EXAMPLES,
    )
    _add_model(parser)
    _add_devices(parser)
    _add_training(parser)
    _add_strategy(parser)

    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print JSON; sizes are in bytes")
    group.add_argument(
        "--plot",
        metavar="FILE",
        help="plot the memory too, with matplotlib: .png, .svg or .pdf",
    )
    return parser


def _add_number(
    add: Callable[..., Action], name: str, meaning: str, default: int | None = None
) -> None:
    """Add an option for a whole number from 1."""
    if default is not None:
        meaning = f"{meaning} (%(default)s)"
    add(*spellings(name), type=whole(), metavar="N", default=default, help=meaning)


def _add_model(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("the model")
    group.add_argument(
        "--params", type=count, metavar="N", help="number of parameters, such as 7e9 or 7B"
    )
    group.add_argument(
        "--model",
        metavar="FOLDER",
        help="a saved model: its config.json, and its *.safetensors files if there are any",
    )
    _add_number(group.add_argument, "layers", "depth")
    _add_number(group.add_argument, "hidden", "width")
    _add_number(group.add_argument, "heads", "number of attention heads")
    _add_number(
        group.add_argument,
        "kv_heads",
        "number of heads of keys and values; by default that of --heads",
    )
    _add_number(group.add_argument, "intermediate", "width of the MLP")
    group.add_argument(
        "--vocab",
        type=whole(),
        metavar="N",
        dest="vocabulary",
        help="number of tokens in the vocabulary",
    )


def _add_devices(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("the devices")
    _add_number(group.add_argument, "gpus", "number of all devices", 1)
    group.add_argument(
        *spellings("gpu_memory"),
        type=scaled(GIB),
        metavar="GIB",
        default="80",
        help="memory of a device in GiB (%(default)s)",
    )


def _add_training(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("the training")
    _add_number(group.add_argument, "batch", "sequences in a micro-batch of a device", 1)
    _add_number(group.add_argument, "sequence", "tokens in a sequence", 2048)
    _add_number(group.add_argument, "accumulation", "micro-batches in a step", 1)
    group.add_argument(
        "--precision",
        choices=list(PRECISIONS),
        default="bf16-mixed",
        help="precision of weights and matrix products (%(default)s)",
    )
    group.add_argument(
        "--optim",
        metavar="NAME",
        choices=[name.value for name in OptimizerNames],
        default="adamw_torch_fused",
        help="as the argument optim (%(default)s)",
    )
    _add_number(group.add_argument, "optim_rank", "rank of GaLore and APOLLO", 128)
    group.add_argument(
        "--attention",
        choices=ATTENTIONS,
        default="flash",
        help="flash, which also stands for SDPA, or eager (%(default)s)",
    )
    group.add_argument(
        *spellings("gradient_checkpointing"),
        action="store_true",
        dest="checkpointing",
        help="compute activations again in the backward pass",
    )


def _add_strategy(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("the strategy")
    group.add_argument(
        "--fsdp", metavar="WORDS", help="as the argument fsdp: full_shard, shard_grad_op"
    )
    _add_number(group.add_argument, "tp", "number of devices that share each layer", 1)
    _add_number(
        group.add_argument,
        "cp",
        "number of devices that share each sequence, as cp_size: they exchange keys and values, "
        "and shard the model",
        1,
    )
    _add_number(group.add_argument, "sp", "the same as sp_size: they exchange heads", 1)
    group.add_argument(
        *spellings("sync_each_batch"),
        action="store_true",
        help="exchange gradients in each micro-batch",
    )
    group.add_argument(
        "--compare", action="store_true", help="compare all strategies, and recommend one"
    )
