"""The command `estimate`: estimate the memory of a device for a training."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from ..command_line import CommandParser, scaled, table, whole
from .decoder import read_shape
from .estimation import (
    GIB,
    OPTIMIZERS,
    PRECISIONS,
    SHARDING,
    Estimate,
    Job,
    compare,
    count_parameters,
)
from .estimation import estimate as estimate_job

_EXAMPLES = """examples:
  lightrainer estimate config.json --gpus 64 --fsdp full_shard --gradient-checkpointing
  lightrainer estimate path/to/model --gpus 8 --batch 4 --sequence 4096 --compare
  lightrainer estimate config.json --gpus 64 --tp 8 --fsdp full_shard --json

DeepSpeed, offload, hybrid_shard, traffic and the time of a step are not estimated.
docs/user/scaling.md describes what is measured and what is computed.
"""
_LABELS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations",
    "logits": "logits and their gradient",
    "buffers": "communication buffers",
}


def estimate(flags: Sequence[str]) -> int:
    """Print the memory of a training; nothing is loaded or written.

    Args:
        flags: the configuration of the model and the options, see `--help`.

    Returns:
        0, the exit status, whether it fits or not; an error ends the program with 2.
    """
    parser = _make_parser()
    options = vars(parser.parse_args(flags))
    is_comparison = options.pop("compare")
    as_json = options.pop("json")
    try:
        job = Job(**{**options, "model": read_shape(options["model"])})
        estimates = compare(job) if is_comparison else [estimate_job(job)]
    except (ValueError, OSError) as error:
        parser.error(str(error))

    if as_json:
        print(json.dumps([_as_dict(estimate) for estimate in estimates], indent=1))
    elif is_comparison:
        print(comparison_table(estimates))
    else:
        print(estimate_table(estimates[0]))
    return 0


def _make_parser() -> CommandParser:
    parser = CommandParser(
        "estimate",
        "Estimate how much memory the training of a decoder needs on each device.",
        _EXAMPLES,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="the config.json of a model, or the folder that contains it")
    add(
        "--gpus",
        type=whole(),
        metavar="N",
        default=1,
        help="number of all devices (%(default)s)",
    )
    add(
        "--gpu-memory",
        type=scaled(GIB),
        metavar="GIB",
        default="80",
        help="memory of a device in GiB (%(default)s)",
    )
    add(
        "--batch",
        type=whole(),
        metavar="N",
        default=1,
        help="sequences in a micro-batch of a device (%(default)s)",
    )
    add(
        "--sequence",
        type=whole(),
        metavar="N",
        default=2048,
        help="tokens in a sequence (%(default)s)",
    )
    add(
        "--accumulation",
        type=whole(),
        metavar="N",
        default=1,
        help="micro-batches in a step (%(default)s)",
    )
    add(
        "--precision",
        choices=list(PRECISIONS),
        default="bf16-mixed",
        help="precision of weights and matrix products (%(default)s)",
    )
    add(
        "--optim",
        choices=OPTIMIZERS,
        default="adamw_torch_fused",
        help="as the argument optim (%(default)s)",
    )
    add(
        "--gradient-checkpointing",
        action="store_true",
        dest="checkpointing",
        help="compute activations again in the backward pass",
    )
    add("--fsdp", choices=SHARDING, help="as the argument fsdp")
    add(
        "--tp",
        type=whole(),
        metavar="N",
        default=1,
        help="number of devices that share each layer (%(default)s)",
    )
    add("--compare", action="store_true", help="compare all strategies, and recommend one")
    add("--json", action="store_true", help="print JSON; sizes are in bytes")
    return parser


def _as_dict(estimate: Estimate) -> dict[str, object]:
    """Return plain values for JSON: bytes and counts."""
    return {
        "strategy": estimate.job.strategy,
        "job": dataclasses.asdict(estimate.job),
        "memory": {**estimate.sizes, "total": estimate.total},
        "fits": estimate.fits,
    }


def estimate_table(estimate: Estimate) -> str:
    """Format an estimate: memory by purpose."""
    rows = [("memory of a device", "")]
    for name, number in estimate.sizes.items():
        if number:
            rows.append((_LABELS[name], _format_size(number)))
    rows.append(("total", _format_size(estimate.total)))

    verdict = "fits" if estimate.fits else "DOES NOT FIT"
    device_memory = _format_size(estimate.job.gpu_memory)
    lines = [
        *_heading(estimate.job),
        f"strategy: {estimate.job.strategy}",
        "",
        *table(rows),
        "",
        f"{verdict} into {device_memory} of device memory, with 10% kept free",
    ]
    return "\n".join(lines)


def comparison_table(estimates: Sequence[Estimate]) -> str:
    """Format all strategies, one line each, and the recommended one."""
    rows = [("strategy", "accumulation", "device", "fits")]
    for estimate in estimates:
        job = estimate.job
        fits = "yes" if estimate.fits else "no"
        rows.append((job.strategy, str(job.accumulation), _format_size(estimate.total), fits))

    # The first strategy that fits is the simplest one.
    advice = "None fits: use more devices, a smaller batch or shorter sequences."
    fitting = [estimate.job for estimate in estimates if estimate.fits]
    if fitting:
        advice = f"Recommended: {fitting[0].strategy}."
        if fitting[0].accumulation != estimates[0].job.accumulation:
            advice += f" Set gradient_accumulation_steps={fitting[0].accumulation}."
    return "\n".join([*_heading(estimates[0].job), "", *table(rows), "", advice])


def _heading(job: Job) -> list[str]:
    """Return lines about the model and the training."""
    model = job.model
    tokens_of_step = job.copies * job.batch * job.sequence * job.accumulation
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
