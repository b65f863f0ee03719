"""The command `estimate`: estimate memory per device and traffic per step of a training."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from ...lightning_modules.common.suggestions import OptimizerNames
from ..command_line import CommandParser, count, scaled, whole
from .estimation import best, compare
from .estimation import estimate as estimated
from .job import ATTENTIONS, GIB, PRECISIONS, SHARDING, Job
from .shapes import ModelShape
from .source import model_from_folder, model_of_size
from .tables import comparison_table, draw, estimate_table

_EXAMPLES = """examples:
  lightrainer estimate --params 7e9 --gpus 64 --fsdp full_shard --gradient-checkpointing
  lightrainer estimate --model path/to/model --gpus 8 --batch 4 --sequence 4096 --compare
  lightrainer estimate --params 70e9 --gpus 64 --tp 8 --fsdp full_shard --json

docs/user/scaling.md says what is measured, and what is computed how.
"""


def estimate(flags: Sequence[str]) -> int:
    """Print the memory and the traffic of a training; no weights are loaded, and only `--plot`
    writes a file.

    Args:
        flags: The options, see `--help`.

    Returns:
        0, the exit status, whether it fits or not; an error ends the program with 2.
    """
    parser = _parser()
    options = parser.parse_args(flags)
    try:
        job = _job(options)
        estimates = compare(job) if options.compare else [estimated(job)]
        if options.plot is not None:
            draw(estimates, options.plot)
    except (ValueError, TypeError, OSError, ImportError) as error:
        parser.error(str(error))
    if not options.json:
        print(comparison_table(estimates) if options.compare else estimate_table(estimates[0]))
        return 0
    recommended = best(estimates) if options.compare else None
    summary = {
        "best": recommended and recommended.job.strategy,
        "estimates": [one.as_dict() for one in estimates],
    }
    print(json.dumps(summary, indent=1))
    return 0


def _job(options: Namespace) -> Job:
    values = {
        field.name: getattr(options, field.name)
        for field in fields(Job)
        if hasattr(options, field.name)
    }
    return Job(**{**values, "model": _model(options), "fsdp": _fsdp(options.fsdp)})


def _model(given: Namespace) -> ModelShape:
    names = ("layers", "hidden", "heads", "kv_heads", "intermediate", "vocabulary")
    numbers = {name: getattr(given, name) for name in names}
    if given.model is None:
        return model_of_size(given.params, **numbers)
    beside = [name for name in ("params", *names) if getattr(given, name) is not None]
    if beside:
        raise ValueError(
            f"model={given.model!r} determines {', '.join(beside)}: leave them out, or leave out "
            "model."
        )
    return model_from_folder(given.model)


def _fsdp(text: str | None) -> str | None:
    """Return the way of sharding in the argument `fsdp`."""
    words = (text or "").split()
    sharding = [word for word in words if word != "auto_wrap"]
    if not words:
        return None
    if len(sharding) != 1 or sharding[0] not in SHARDING:
        raise ValueError(
            f"fsdp={text!r} must be one of {', '.join(SHARDING)}, with or without auto_wrap."
        )
    return sharding[0]


def _parser() -> CommandParser:
    description = (
        "Work out how much memory a training needs on each device, and how much each device sends."
    )
    parser = CommandParser("estimate", description, _EXAMPLES)

    def group(title: str) -> Callable[..., Any]:
        add_argument = parser.add_argument_group(title).add_argument

        def add(
            name: str, text: str, kind: Any = None, metavar: str = "N", **settings: Any
        ) -> None:
            """Add an option in both spellings; a `kind` of bool is a switch."""
            spelt = name.replace("-", "_").replace("__", "--", 1)
            valued = (
                {"action": "store_true"} if kind is bool else {"type": kind, "metavar": metavar}
            )
            add_argument(*dict.fromkeys([name, spelt]), help=text, **{**valued, **settings})

        return add

    _add_job(group("the model"), group("the devices"), group("the training"))
    _add_strategy(group("the strategy"))
    add = group("what is printed")
    add("--json", "as JSON, in bytes", bool)
    add("--plot", "draw the memory too, with matplotlib: .png, .svg, .pdf", metavar="FILE")
    return parser


def _add_job(
    model: Callable[..., Any], devices: Callable[..., Any], training: Callable[..., Any]
) -> None:
    model("--params", "parameters, such as 7e9 or 7B", count)
    model(
        "--model",
        "a saved model: its config.json, and *.safetensors if there are any",
        metavar="FOLDER",
    )
    model("--layers", "depth", whole())
    model("--hidden", "width", whole())
    model("--heads", "attention heads", whole())
    model("--kv-heads", "heads of keys and values; by default as many", whole())
    model("--intermediate", "width of the MLP", whole())
    model("--vocab", "tokens in the vocabulary", whole(), dest="vocabulary")
    devices("--gpus", "all devices together; 1", whole(), default=1)
    devices("--gpu-memory", "of a device; 80 by default", scaled(GIB), "GIB", default="80")
    training("--batch", "sequences in a micro-batch of a device; 1", whole(), default=1)
    training("--sequence", "tokens in a sequence; 2048", whole(), default=2048)
    training("--accumulation", "micro-batches in a step; 1", whole(), default=1)
    training(
        "--precision",
        "bf16-mixed by default",
        None,
        None,
        choices=list(PRECISIONS),
        default="bf16-mixed",
    )
    optimizers = [name.value for name in OptimizerNames]
    training(
        "--optim",
        "as the argument optim",
        None,
        "NAME",
        choices=optimizers,
        default="adamw_torch_fused",
    )
    training("--optim-rank", "of GaLore and APOLLO; 128", whole(), default=128)
    training(
        "--attention",
        "flash (default, SDPA too) or eager",
        None,
        None,
        choices=ATTENTIONS,
        default="flash",
    )
    again = "compute activations again in the backward pass"
    training("--gradient-checkpointing", again, bool, dest="checkpointing")


def _add_strategy(add: Callable[..., Any]) -> None:
    add("--fsdp", "as the argument fsdp: full_shard, shard_grad_op", None, "WORDS")
    add("--tp", "devices that share each layer", whole(), default=1)
    add("--sync-each-batch", "exchange gradients in each micro-batch", bool)
    add("--compare", "all strategies side by side, and which to take", bool)
