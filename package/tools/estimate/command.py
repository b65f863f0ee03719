"""The command `estimate`: estimate memory per device and traffic per step of a training."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import json
import math
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..number_options import positive, whole

if TYPE_CHECKING:
    from . import Estimate, Job, ModelShape

_EXAMPLES = """examples:
  lightrainer estimate --params 7e9 --gpus 64 --fsdp full_shard --gradient-checkpointing
  lightrainer estimate --model path/to/model --gpus 8 --batch 4 --sequence 4096 --compare
  lightrainer estimate --params 70e9 --gpus 64 --tp 8 --fsdp full_shard --bandwidth 450 --node-bandwidth 50 --json

docs/user/scaling.md has the formulas.
"""


def estimate(flags: Sequence[str]) -> int:
    """Print what a training needs; nothing is loaded and nothing is written, but for `--plot`.

    Args:
        flags: The options, see `--help`.

    Returns:
        0, the exit status, whether it fits or not; what cannot be ends the program with 2.
    """
    parser = _parser()
    given = parser.parse_args(flags)
    from . import compare, comparison_table, estimate_table
    from .estimation import estimate as estimated

    try:
        job = _job(given)
        choice = compare(job) if given.compare else None
        estimates = choice.estimates if choice else (estimated(job),)
        if given.plot is not None:
            _draw(estimates, given.plot)
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
    from . import Job

    shards, offload = _fsdp(given.fsdp)
    words = {word.rstrip("s") + "s" if word.startswith("param") else word for word in given.offload}
    words = {"parameters" if word.startswith("param") else word for word in words}
    return Job(
        model=_model(given),
        **_devices(given),
        gpu_memory=given.gpu_memory * 2**30,
        batch=given.batch,
        sequence=given.sequence,
        accumulation=given.accumulation,
        precision=given.precision,
        optim=given.optim,
        optim_rank=given.optim_rank,
        fsdp=shards,
        deepspeed=given.deepspeed,
        offload=frozenset(words | ({"parameters"} if offload else set())),
        tp=given.tp,
        sequence_parallel=given.sequence_parallel,
        cp=given.cp,
        checkpointing=given.gradient_checkpointing,
        attention=given.attention,
        sync_each_batch=given.sync_each_batch,
        bandwidth=None if given.bandwidth is None else given.bandwidth * 1e9,
        node_bandwidth=None if given.node_bandwidth is None else given.node_bandwidth * 1e9,
        flops=None if given.tflops is None else given.tflops * 1e12,
    )


def _model(given: Namespace) -> ModelShape:
    from . import model_from_folder, model_of_size

    names = ("layers", "hidden", "heads", "kv_heads", "intermediate", "vocabulary")
    numbers = {name: getattr(given, name) for name in names}
    if given.model is None:
        return model_of_size(given.params, **numbers)
    beside = [name for name in ("params", *names) if getattr(given, name) is not None]
    if beside:
        raise ValueError(
            f"model={given.model!r} says what {', '.join(beside)} are: leave them out, or leave out model."
        )
    return model_from_folder(given.model)


def _devices(given: Namespace) -> dict[str, Any]:
    """`gpus` and `gpus_per_node`, from any two of the three numbers.

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
    """The word of the argument `fsdp` that says what is sharded, and whether `offload` is among its words."""
    words = (text or "").split()
    sharding = [word for word in words if word not in ("offload", "auto_wrap")]
    if len(sharding) > 1:
        raise ValueError(f"fsdp={text!r} names two ways of sharding: {' and '.join(sharding)}. Leave one out.")
    if words and not sharding:
        raise ValueError(f"fsdp={text!r} does not say what is sharded: write full_shard or shard_grad_op before it.")
    return (sharding[0] if sharding else None), "offload" in words


def _draw(estimates: Sequence[Estimate], path: str) -> None:
    from .tables import draw

    draw(estimates, path)


def _count(text: str) -> int:
    """A whole number from 1, also as `7e9`, `7B` or `350M`."""
    scale = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}.get(text[-1:].lower())
    try:
        number = float(text[:-1].replace("_", "").replace(",", "")) * scale if scale else float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number, such as 7e9 or 7B") from None
    if not math.isfinite(number) or number < 1:
        raise ArgumentTypeError(f"{text!r} has to be at least 1")
    return round(number)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="lightrainer estimate",
        description="Work out how much memory a training needs on each device, and how much each device sends.",
        epilog=_EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for title, options in _OPTIONS.items():
        group = parser.add_argument_group(title)
        for flag, settings in options.items():
            names = flag.split()
            spelt = [name.replace("-", "_").replace("__", "--", 1) for name in names if "-" in name[2:]]
            group.add_argument(*names, *spelt, **settings)
    return parser


_SWITCH: dict[str, Any] = {"action": "store_true"}
_OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "the model": {
        "--params": {"type": _count, "metavar": "N", "help": "parameters, such as 7e9 or 7B"},
        "--model": {"metavar": "FOLDER", "help": "a saved model: its config.json, and *.safetensors if there are any"},
        "--layers": {"type": whole(), "metavar": "N", "help": "depth"},
        "--hidden": {"type": whole(), "metavar": "N", "help": "width"},
        "--heads": {"type": whole(), "metavar": "N", "help": "attention heads"},
        "--kv-heads": {"type": whole(), "metavar": "N", "help": "heads of keys and values; by default as many"},
        "--intermediate": {"type": whole(), "metavar": "N", "help": "width of the MLP"},
        "--vocab": {"type": whole(), "metavar": "N", "dest": "vocabulary", "help": "tokens in the vocabulary"},
    },
    "the devices": {
        "--gpus": {"type": whole(), "metavar": "N", "help": "all devices together"},
        "--nodes": {"type": whole(), "metavar": "N", "help": "machines"},
        "--gpus-per-node": {"type": whole(), "metavar": "N", "help": "devices of a machine; 8, or all where fewer"},
        "--gpu-memory": {"type": positive, "default": 80.0, "metavar": "GIB", "help": "of a device; 80 by default"},
        "--bandwidth": {"type": positive, "metavar": "GB/s", "help": "that a device can send within its machine"},
        "--node-bandwidth": {"type": positive, "metavar": "GB/s", "help": "that it can send to other machines"},
        "--tflops": {"type": positive, "metavar": "N", "help": "that a device reaches in practice, for times"},
    },
    "the training": {
        "--batch": {"type": whole(), "default": 1, "metavar": "N", "help": "sequences in a micro-batch of a device; 1"},
        "--sequence": {"type": whole(), "default": 2048, "metavar": "N", "help": "tokens in a sequence; 2048"},
        "--accumulation": {"type": whole(), "default": 1, "metavar": "N", "help": "micro-batches in a step; 1"},
        "--precision": {"default": "bf16-mixed", "help": "fp32, bf16-mixed (default), fp16 or bf16-true"},
        "--optim": {"default": "adamw_torch_fused", "metavar": "NAME", "help": "as the argument optim"},
        "--optim-rank": {"type": whole(), "default": 128, "metavar": "N", "help": "of GaLore and APOLLO; 128"},
        "--attention": {"default": "flash", "help": "flash (default, SDPA too) or eager"},
        "--gradient-checkpointing": {**_SWITCH, "help": "compute activations again in the backward pass"},
    },
    "the strategy": {
        "--fsdp": {"metavar": "WORDS", "help": "as the argument fsdp: full_shard, 'shard_grad_op offload', ..."},
        "--deepspeed": {"type": whole(0), "metavar": "STAGE", "help": "stage of ZeRO, 0 to 3"},
        "--offload": {"nargs": "+", "default": [], "metavar": "WHAT", "help": "optimizer, parameters: to host memory"},
        "--tp": {"type": whole(), "default": 1, "metavar": "N", "help": "devices that share each layer"},
        "--sequence-parallel": {**_SWITCH, "help": "with tp: tokens are shared out between the layers' parts"},
        "--cp": {"type": whole(), "default": 1, "metavar": "N", "help": "devices that share each sequence"},
        "--sync-each-batch": {**_SWITCH, "help": "exchange gradients in each micro-batch"},
        "--compare": {**_SWITCH, "help": "all strategies side by side, and which to take"},
    },
    "what is printed": {
        "--json": {**_SWITCH, "help": "as JSON; bytes and seconds"},
        "--plot": {"metavar": "FILE", "help": "draw the memory too, with matplotlib: .png, .svg, .pdf"},
    },
}
