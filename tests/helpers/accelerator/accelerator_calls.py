"""Calls on the reference's accelerator and on ours, whose results have to be the same.

Each function takes an accelerator that accumulates three micro-batches, and returns a value that
`plain` converts to JSON.
"""

import contextlib
import io
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Point = namedtuple("Point", ["x", "y"])
CALLS: dict[str, Callable[[Any], Any]] = {}


def call(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    CALLS[function.__name__] = function
    return function


def outcome(function: Callable[[Any], Any], accelerator: Any) -> Any:
    try:
        return plain(function(accelerator))
    except Exception as error:
        return ["raises", type(error).__name__]


def plain(value: Any) -> Any:
    """JSON that tells types apart."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), value.detach().flatten().tolist()]
    if isinstance(value, np.ndarray):
        return ["array", value.tolist()]
    if isinstance(value, dict):
        return [type(value).__name__, {str(key): plain(item) for key, item in value.items()}]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [plain(item) for item in value]]
    if isinstance(value, str):  # enumerations of strings too
        return str.__str__(getattr(value, "value", value))
    return value if isinstance(value, (int, float, bool, type(None))) else repr(value)


def mine(accelerator: Any, *shape: int) -> torch.Tensor:
    """A tensor that is another one in each process."""
    return (
        torch.arange(float(np.prod(shape or (1,)))).reshape(shape) + 100 * accelerator.process_index
    )


INPUTS: dict[str, Callable[[Any], Any]] = {
    "a number": lambda a: torch.tensor(1.5 + a.process_index),
    "a vector": lambda a: mine(a, 3),
    "a matrix": lambda a: mine(a, 2, 3),
    "booleans": lambda a: mine(a, 4) > 50,
    "halves": lambda a: mine(a, 4).to(torch.bfloat16),
    "a tuple": lambda a: (mine(a, 2), [mine(a, 1)]),
    "a dict": lambda a: {"a": mine(a, 2), "b": {"c": mine(a, 2, 2)}},
    "a named tuple": lambda a: Point(mine(a, 2), [mine(a, 1)]),
    "nothing in it": lambda a: [],
    "none": lambda a: None,
    "text": lambda a: "text",
    "a Python number": lambda a: 3,
    "text among them": lambda a: {"a": mine(a, 2), "b": "text"},
    "None among them": lambda a: (mine(a, 2), None),
    "an array": lambda a: np.arange(3),
    "rows of zero length": lambda a: mine(a, 0, 3),
}
UNEVEN: dict[str, Callable[[Any], Any]] = {
    "lengths": lambda a: mine(a, 2 + a.process_index),
    "columns": lambda a: mine(a, 2, 3 - a.process_index),
    "both": lambda a: {"a": mine(a, 2 + a.process_index, 4 - a.process_index), "b": [mine(a, 2)]},
    "whole numbers": lambda a: mine(a, 1 + a.process_index, 2).long(),
    "a number": lambda a: torch.tensor(1.0),
    "text": lambda a: ["text"],
}


def table(
    function: Callable[..., Any], inputs: dict[str, Callable[[Any], Any]], **keywords: Any
) -> None:
    suffix = "".join(f", {name}={value}" for name, value in keywords.items())
    for name, make in inputs.items():
        CALLS[f"{function.__name__}: {name}{suffix}"] = lambda a, make=make: function(
            a, make(a), **keywords
        )


def gather(a, given):
    return a.gather(given)


def gather_for_metrics(a, given, **keywords):
    return a.gather_for_metrics(given, **keywords)


def reduce(a, given, **keywords):
    return a.reduce(given, **keywords)


def pad(a, given, **keywords):
    return a.pad_across_processes(given, **keywords)


def split(a, given, **keywords):
    with a.split_between_processes(given, **keywords) as share:
        return share


table(gather, INPUTS)
table(gather_for_metrics, INPUTS)
table(
    gather_for_metrics,
    {"lists": lambda a: [f"{a.process_index}-{i}" for i in range(2 + a.process_index)]},
)
table(
    gather_for_metrics,
    {"lists": lambda a: [{"a": a.process_index}, (1, 2)]},
    use_gather_object=True,
)
for reduction in ("sum", "mean", "max"):
    table(reduce, INPUTS, reduction=reduction)
table(reduce, {"a vector": INPUTS["a vector"]}, scale=3.0)
for keywords in (
    {},
    {"dim": 1},
    {"dim": -1},
    {"dim": -2},
    {"dim": 5},
    {"pad_index": -100},
    {"pad_first": True},
):
    table(pad, UNEVEN, **keywords)
table(pad, {"columns": UNEVEN["columns"]}, dim=1, pad_index=-100, pad_first=True)

SHARED: dict[str, Callable[[Any], Any]] = {
    f"{count} in a {kind.__name__}": lambda a, count=count, kind=kind: kind(range(count))
    for count in (1, 2, 5, 6)
    for kind in (list, tuple, torch.arange)
    for kind in [kind if kind is not torch.arange else (lambda r: torch.arange(len(r)))]
}
SHARED |= {
    "a dict": lambda a: {"a": [1, 2, 3], "b": torch.arange(3)},
    "a dict of other lengths": lambda a: {"a": [1, 2, 3], "b": [1]},
    "text": lambda a: "a text",
    "a number": lambda a: 3,
}
table(split, SHARED)
table(
    split, {name: make for name, make in SHARED.items() if "tuple" not in name}, apply_padding=True
)


@call
def questions(a):
    names = (
        "num_processes process_index local_process_index is_main_process is_local_main_process "
        "is_last_process"
    )
    names += (
        " use_distributed distributed_type mixed_precision multi_device native_amp sync_gradients "
        "scaler"
    )
    names += (
        " gradient_accumulation_steps split_batches dispatch_batches even_batches non_blocking "
        "fp8_backend"
    )
    names += (
        " use_stateful_dataloader is_fsdp2 is_composable_parallelism_enabled fp8_enabled "
        "has_fp8_handler"
    )
    names += " use_seedable_sampler"
    names += (
        " optimizer_step_was_skipped step project_dir logging_dir trackers log_with "
        "device_placement"
    )
    names += (
        " step_scheduler_with_optimizer has_lomo_optimizer parallelism_config torch_device_mesh"
    )
    names += " should_save_model deepspeed_plugin delayed_fp8_autocast"
    return {name: getattr(a, name) for name in names.split()} | {"device": a.device.type}


@call
def questions_to_the_state(a):
    names = (
        "num_processes process_index local_process_index is_main_process is_local_main_process "
        "is_last_process"
    )
    names += (
        " use_distributed distributed_type mixed_precision backend is_fsdp2 initialized debug "
        "deepspeed_plugin"
    )
    names += " deepspeed_plugins parallelism_config device_mesh torch_tp_plugin"
    return {name: getattr(a.state, name) for name in names.split()}


@call
def questions_to_the_gradient_state(a):
    names = (
        "sync_gradients num_steps adjust_scheduler sync_with_dataloader end_of_dataloader "
        "remainder in_dataloader"
    )
    state = a.gradient_state
    answers = {
        name: getattr(state, name)
        for name in (names + " active_dataloader dataloader_references").split()
    }
    state._set_sync_gradients(False)
    answers["set"] = a.sync_gradients
    a.sync_gradients = True
    return answers | {"again": state.sync_gradients}


@call
def decorators(a):
    def double(x, by=2):
        return x * by

    wrappers = [a.on_main_process, a.on_local_main_process]
    return [wrap(double)(3, by=3) for wrap in wrappers]


@call
def first_the_main_process(a):
    with a.main_process_first():
        pass
    with a.local_main_process_first():
        pass
    with a.state.main_process_first():
        pass
    return a.wait_for_everyone()


@call
def printing(a):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        a.print("a", 1, sep="-")
        a.state.print("b")
    return out.getvalue()


@call
def reducing_copies(a):
    original = torch.ones(2)
    a.reduce(original).add_(5)
    return original


@call
def casting(a):
    from accelerate.utils import AutocastKwargs

    with a.autocast(), a.autocast(autocast_handler=AutocastKwargs(enabled=False)):
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype.is_floating_point
