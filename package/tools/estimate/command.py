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
from .estimation import compare
from .estimation import estimate as estimated
from .job import ATTENTIONS, GIB, OFFLOADS, PRECISIONS, SHARDING, Job
from .shapes import ModelShape, model_of_size
from .source import model_from_folder
from .tables import comparison_table, draw, estimate_table

_EXAMPLES = """examples:
  lightrainer estimate --params 7e9 --gpus 64 --fsdp full_shard --gradient-checkpointing
  lightrainer estimate --model path/to/model --gpus 8 --batch 4 --sequence 4096 --compare
  lightrainer estimate --params 70e9 --gpus 64 --tp 8 --fsdp full_shard --bandwidth 450 --node-bandwidth 50 --json

docs/user/scaling.md has the formulas.
"""


def estimate(flags: Sequence[str]) -> int:
    """Print the memory and the traffic of a training; nothing is loaded, and only `--plot` writes a file.

    Args:
        flags: The options, see `--help`.

    Returns:
        0, the exit status, whether it fits or not; an error ends the program with 2.
    """
    parser = _parser()
    given = parser.parse_args(flags)
    try:
        job = _job(given)
        choice = compare(job) if given.compare else None
        estimates = choice.estimates if choice else (estimated(job),)
        if given.plot is not None:
            draw(estimates, given.plot)
    except (ValueError, TypeError, OSError, ImportError) as error:
        parser.error(str(error))
    if given.json:
        best = {}
        if choice is not None:
            best = {"best": choice.best.job.strategy if choice.best else None, "reason": choice.reason or None}
        print(json.dumps({**best, "estimates": [one.as_dict() for one in estimates]}, indent=1))
    else:
        print(comparison_table(choice) if choice else estimate_table(estimates[0]))
    return 0


def _job(given: Namespace) -> Job:
    own = {field.name: getattr(given, field.name) for field in fields(Job) if hasattr(given, field.name)}
    shards, offload = _fsdp(given.fsdp)
    parts = frozenset(given.parts_to_offload) | ({"parameters"} if offload else set())
    return Job(**{**own, **_devices(given), "model": _model(given), "fsdp": shards, "offload": parts})


def _model(given: Namespace) -> ModelShape:
    names = ("layers", "hidden", "heads", "kv_heads", "intermediate", "vocabulary")
    numbers = {name: getattr(given, name) for name in names}
    if given.model is None:
        return model_of_size(given.params, **numbers)
    beside = [name for name in ("params", *names) if getattr(given, name) is not None]
    if beside:
        raise ValueError(f"model={given.model!r} determines {', '.join(beside)}: leave them out, or leave out model.")
    return model_from_folder(given.model)


def _devices(given: Namespace) -> dict[str, Any]:
    """Return `gpus` and `gpus_per_node`, from any two of the three numbers.

    Raises:
        ValueError: they contradict each other.
    """
    gpus, nodes, local = given.gpus, given.nodes, given.gpus_per_node
    if nodes is None:
        return {"gpus": gpus or local or 1, "gpus_per_node": local}
    if gpus is None:
        return {"gpus": nodes * (local or 8), "gpus_per_node": local or 8}
    if gpus % nodes or (local is not None and nodes * local != gpus):
        of = f" of gpus_per_node={local}" if local is not None else ""
        raise ValueError(f"nodes={nodes}{of} does not give gpus={gpus}. Leave one of them out.")
    return {"gpus": gpus, "gpus_per_node": gpus // nodes}


def _fsdp(text: str | None) -> tuple[str | None, bool]:
    """Return the way of sharding in the argument `fsdp`, and whether it has the word `offload`."""
    words = (text or "").split()
    sharding = [word for word in words if word not in ("offload", "auto_wrap")]
    if words and (len(sharding) != 1 or sharding[0] not in SHARDING):
        raise ValueError(f"fsdp={text!r} must have one of {', '.join(SHARDING)}, and offload or auto_wrap beside it.")
    return (sharding[0] if sharding else None), "offload" in words


def _part(text: str) -> str:
    return "parameters" if text.startswith("param") else text.rstrip("s")


def _parser() -> CommandParser:
    description = "Work out how much memory a training needs on each device, and how much each device sends."
    parser = CommandParser("estimate", description, _EXAMPLES)

    def group(title: str) -> Callable[..., Any]:
        add_argument = parser.add_argument_group(title).add_argument

        def add(name: str, text: str, kind: Any = None, metavar: str = "N", **settings: Any) -> None:
            """Add an option in both spellings; a `kind` of bool is a switch."""
            spelt = name.replace("-", "_").replace("__", "--", 1)
            valued = {"action": "store_true"} if kind is bool else {"type": kind, "metavar": metavar}
            add_argument(*dict.fromkeys([name, spelt]), help=text, **{**valued, **settings})

        return add

    _add_job(group("the model"), group("the devices"), group("the training"))
    _add_strategy(group("the strategy"))
    add = group("what is printed")
    add("--json", "as JSON; bytes and seconds", bool)
    add("--plot", "draw the memory too, with matplotlib: .png, .svg, .pdf", metavar="FILE")
    return parser


def _add_job(model: Callable[..., Any], devices: Callable[..., Any], training: Callable[..., Any]) -> None:
    model("--params", "parameters, such as 7e9 or 7B", count)
    model("--model", "a saved model: its config.json, and *.safetensors if there are any", metavar="FOLDER")
    model("--layers", "depth", whole())
    model("--hidden", "width", whole())
    model("--heads", "attention heads", whole())
    model("--kv-heads", "heads of keys and values; by default as many", whole())
    model("--intermediate", "width of the MLP", whole())
    model("--vocab", "tokens in the vocabulary", whole(), dest="vocabulary")
    devices("--gpus", "all devices together", whole())
    devices("--nodes", "machines", whole())
    devices("--gpus-per-node", "devices of a machine; 8, or all where fewer", whole())
    devices("--gpu-memory", "of a device; 80 by default", scaled(GIB), "GIB", default="80")
    devices("--bandwidth", "that a device can send within its machine", scaled(1e9), "GB/s")
    devices("--node-bandwidth", "that it can send to other machines", scaled(1e9), "GB/s")
    devices("--tflops", "that a device reaches in practice, for times", scaled(1e12), dest="flops")
    training("--batch", "sequences in a micro-batch of a device; 1", whole(), default=1)
    training("--sequence", "tokens in a sequence; 2048", whole(), default=2048)
    training("--accumulation", "micro-batches in a step; 1", whole(), default=1)
    training("--precision", "bf16-mixed by default", None, None, choices=list(PRECISIONS), default="bf16-mixed")
    optimizers = [name.value for name in OptimizerNames]
    training("--optim", "as the argument optim", None, "NAME", choices=optimizers, default="adamw_torch_fused")
    training("--optim-rank", "of GaLore and APOLLO; 128", whole(), default=128)
    training("--attention", "flash (default, SDPA too) or eager", None, None, choices=ATTENTIONS, default="flash")
    again = "compute activations again in the backward pass"
    training("--gradient-checkpointing", again, bool, dest="checkpointing")


def _add_strategy(add: Callable[..., Any]) -> None:
    add("--fsdp", "as the argument fsdp: full_shard, 'shard_grad_op offload', ...", None, "WORDS")
    add("--deepspeed", "stage of ZeRO, 0 to 3", whole(0, 3), "STAGE")
    parts: dict[str, Any] = {"choices": OFFLOADS, "dest": "parts_to_offload", "nargs": "+", "default": []}
    add("--offload", "optimizer, parameters: to host memory", _part, "WHAT", **parts)
    add("--tp", "devices that share each layer", whole(), default=1)
    add("--sequence-parallel", "with tp: shard tokens between the layers' parts", bool)
    add("--cp", "devices that share each sequence", whole(), default=1)
    add("--sync-each-batch", "exchange gradients in each micro-batch", bool)
    add("--compare", "all strategies side by side, and which to take", bool)
