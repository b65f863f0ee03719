"""The command `estimate`: estimate the device memory that a training needs."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from ..command_line import CommandParser, integer, positive, spellings, table
from .estimation import (
    GIB,
    OPTIMIZERS,
    PRECISIONS,
    SHARDING,
    Estimate,
    Job,
    best,
    compare,
    count_parameters,
)
from .estimation import estimate as estimate_job
from .shape import KNOWN_SHAPES, read_shape

_EXAMPLES = """examples:
  lightrainer estimate --model 8B --gpus 64 --fsdp full_shard --sequence 8192
  lightrainer estimate --model path/to/model --gpus 8 --batch 4 --compare
  lightrainer estimate --model 70B --gpus 64 --tp 8 --fsdp full_shard --json
  lightrainer estimate --model 8B --gpus 8 --fsdp full_shard --cp 8

DeepSpeed, offload, hybrid_shard, traffic and the time of a step are not
estimated. docs/user/scaling.md describes what is measured and what is computed.
"""
_STRATEGY_OPTIONS = ("fsdp", "tp", "cp", "checkpointing")
"""Fields of `Job` that a comparison varies."""


def estimate(flags: Sequence[str]) -> int:
    """Print the device memory that a training needs, without loading or writing anything.

    Args:
        flags: the options, see `--help`.

    Returns:
        the exit status: 0, whether or not the training fits. Invalid options exit with status 2.
    """
    parser = _make_parser()
    options = vars(parser.parse_args(flags))
    is_comparison = options.pop("compare")
    as_json = options.pop("json")
    if is_comparison:
        _refuse_strategy(parser, options)
    try:
        options["model"] = read_shape(options["model"])
        job = Job(**options)
    except (ValueError, TypeError, OSError) as error:
        parser.error(str(error))

    estimates = compare(job) if is_comparison else [estimate_job(job)]
    if as_json:
        print(_as_json(estimates, is_comparison=is_comparison))
    elif is_comparison:
        print(comparison_table(estimates))
    else:
        print(estimate_table(estimates[0]))
    return 0


def _refuse_strategy(parser: CommandParser, options: dict[str, object]) -> None:
    """Exit with an error if an option chooses a strategy, because --compare tries all of them."""
    for name in _STRATEGY_OPTIONS:
        if options[name] != parser.get_default(name):
            option = "gradient_checkpointing" if name == "checkpointing" else name
            parser.error(f"--compare estimates all strategies: leave out --{option}.")


def _make_parser() -> CommandParser:
    """Return the parser of the command, whose options are the fields of `Job`."""
    parser = CommandParser(
        "estimate",
        "Estimate how much memory the training of a decoder needs on each device.",
        _EXAMPLES,
    )

    def add_number(name: str, meaning: str, default: int) -> None:
        parser.add_argument(
            *spellings(name),
            type=integer(),
            metavar="N",
            default=default,
            help=f"{meaning} (%(default)s)",
        )

    parser.add_argument(
        "--model",
        required=True,
        metavar="MODEL",
        help="the folder or the config.json of a model, or the size of one of Llama 3: "
        + ", ".join(KNOWN_SHAPES),
    )
    add_number("gpus", "number of all devices", 1)
    parser.add_argument(
        *spellings("gpu_memory"),
        type=positive,
        metavar="GIB",
        default=80.0,
        help="memory of a device in GiB (%(default)g)",
    )
    add_number("batch", "sequences in a micro-batch", 1)
    add_number("sequence", "tokens in a sequence", 2048)
    add_number("accumulation", "micro-batches in a step", 1)
    parser.add_argument(
        "--precision",
        choices=list(PRECISIONS),
        default="bf16-mixed",
        help="precision of weights and matrix products (%(default)s)",
    )
    parser.add_argument(
        "--optim",
        choices=OPTIMIZERS,
        default="adamw_torch_fused",
        help="as the argument optim (%(default)s)",
    )
    parser.add_argument(
        *spellings("gradient_checkpointing"),
        action="store_true",
        dest="checkpointing",
        help="compute activations again in the backward pass",
    )
    parser.add_argument("--fsdp", choices=SHARDING, help="as the argument fsdp")
    add_number("tp", "number of devices that share each layer, as tp_size", 1)
    add_number("cp", "number of devices that share each sequence, as cp_size or sp_size", 1)
    parser.add_argument(
        "--compare", action="store_true", help="compare all strategies, and recommend one"
    )
    parser.add_argument("--json", action="store_true", help="print JSON; sizes are in bytes")
    return parser


def _as_json(estimates: Sequence[Estimate], *, is_comparison: bool) -> str:
    """Return estimates as JSON, with the best strategy of a comparison."""
    recommended = best(estimates) if is_comparison else None
    entries = []
    for estimate in estimates:
        memory = dataclasses.asdict(estimate.memory)
        entries.append(
            {
                "strategy": estimate.job.strategy,
                "parameters": count_parameters(estimate.job.model),
                "job": dataclasses.asdict(estimate.job),
                "memory": {**memory, "total": estimate.memory.total},
                "fits": estimate.fits,
            }
        )
    summary = {
        "best": None if recommended is None else recommended.job.strategy,
        "estimates": entries,
    }
    return json.dumps(summary, indent=1)


def estimate_table(estimate: Estimate) -> str:
    """Format an estimate as a table of the memory for each purpose."""
    rows = [("memory of a device", "")]
    for purpose, size in dataclasses.asdict(estimate.memory).items():
        rows.append((purpose, _format_size(size)))
    rows.append(("total", _format_size(estimate.memory.total)))

    verdict = "fits" if estimate.fits else "DOES NOT FIT"
    lines = [
        *_heading(estimate.job),
        f"strategy: {estimate.job.strategy}",
        "",
        *table(rows),
        "",
        f"{verdict} into {estimate.job.gpu_memory:g} GiB of device memory, with 10% kept free",
    ]
    return "\n".join(lines)


def comparison_table(estimates: Sequence[Estimate]) -> str:
    """Format all strategies, one line each, and the recommended one."""
    rows = [("strategy", "accumulation", "device", "fits")]
    for estimate in estimates:
        size = _format_size(estimate.memory.total)
        fits = "yes" if estimate.fits else "no"
        rows.append((estimate.job.strategy, str(estimate.job.accumulation), size, fits))

    return "\n".join([*_heading(estimates[0].job), "", *table(rows), "", _advice(estimates)])


def _advice(estimates: Sequence[Estimate]) -> str:
    """Return a sentence about the strategy to use."""
    recommended = best(estimates)
    if recommended is None:
        return (
            "None fits: use more devices, a smaller batch, shorter sequences, or an optimizer with "
            "less state."
        )
    job = recommended.job
    if job.accumulation == estimates[0].job.accumulation:
        return f"Recommended: {job.strategy}."
    return f"Recommended: {job.strategy}, with gradient_accumulation_steps={job.accumulation}."


def _heading(job: Job) -> list[str]:
    """Return lines about the model and the training."""
    model = job.model
    tokens_of_step = job.data_parallel * job.batch * job.sequence * job.accumulation
    return [
        f"{count_parameters(model):,} parameters: {model.layers} layers of width "
        f"{model.hidden:,}, {model.heads} heads ({model.kv_heads} of keys and values), "
        f"MLP {model.intermediate:,}, vocabulary {model.vocabulary:,}",
        f"{job.gpus} devices; {job.batch} x {job.sequence:,} tokens in a micro-batch, "
        f"{job.accumulation} of them in a step: {tokens_of_step:,} tokens",
        f"{job.precision}, {job.optim}",
    ]


def _format_size(number: float) -> str:
    """Format a number of bytes in GiB."""
    return f"{number / GIB:,.2f} GiB"
