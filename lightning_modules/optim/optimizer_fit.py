"""Check that the state of an optimizer fits its parameters before it is loaded.

torch does not check that. Its fused steps, and those of other libraries, assume that each tensor of
the state is as large as the parameter, and write out of bounds if it is smaller.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..common.local_paths import StrPath
from ..common.torch_files import describe_value

_NUMBER_ENTRIES = ("step", "mu_product", "eta", "mu")
"""Entries that are numbers, which some optimizers keep in tensors."""

_COMPILED = (
    "torch",
    "torch_npu",
    "torch_xla",
    "torchao",
    "apex",
    "optimi",
    "deepspeed",
    "schedulefree",
    "bitsandbytes",
)
"""Root packages of optimizers whose steps run compiled code, or broadcast wrong shapes silently."""

_LIKE_PARAMETER = (
    "acc_delta",
    "ax",
    "exp_avg",
    "exp_avg_lr_1",
    "exp_avg_lr_2",
    "exp_avg_slow",
    "exp_avg_sq",
    "exp_inf",
    "grad_avg",
    "kahan_comp",
    "max_exp_avg_sq",
    "momentum_buffer",
    "prev",
    "square_avg",
    "step_size",
    "sum",
    "z",
)
"""Entries that these optimizers assume to be as large as the parameter.

Other entries may have any shape. A subclass of the script may add some, and Adafactor and LBFGS
compute with operations of torch, which check shapes themselves.
"""


@dataclass(frozen=True)
class ParameterShape:
    """Description of a parameter that a state is compared with."""

    name: str
    shape: torch.Size
    dtype: torch.dtype


def require_fitting_optimizer_state(
    optimizer: Any,
    state: Any,
    file: StrPath,
    *,
    model: nn.Module | None = None,
    groups: list[list[ParameterShape]] | None = None,
) -> None:
    """Check the number of parameters in the state of an optimizer, and their shapes.

    Args:
        optimizer: the optimizer to load the state into.
        state: the state read from a file.
        file: that file, for errors.
        model: has the names of the parameters, for errors.
        groups: the whole parameters of each group, if the optimizer has shards of them.

    Raises:
        ValueError: something does not fit. Nothing has been loaded.
    """
    is_mapping = isinstance(state, Mapping) and isinstance(state.get("state"), Mapping)
    # A class that loads its state in its own way has to check it itself.
    load_state_dict = getattr(type(optimizer), "load_state_dict", None)
    has_own_format = load_state_dict is not Optimizer.load_state_dict
    if has_own_format and not (is_mapping and "param_groups" in state):
        return
    if not is_mapping:
        raise ValueError(
            f"{file} does not hold the state of an optimizer, but {describe_value(state)}."
        )
    _raise_first(optimizer, file, _problems(optimizer, state, groups, model))


def require_fitting_loaded_state(optimizer: Optimizer, file: StrPath) -> None:
    """Check, as `require_fitting_optimizer_state` does, a state that is already loaded.

    Args:
        optimizer: an optimizer that has not taken a step since.
        file: the file of the state, for errors.

    Raises:
        ValueError: a tensor does not fit its parameter. The optimizer must not be used.
    """
    for tensor, values in optimizer.state.items():
        parameter = ParameterShape("a parameter", tensor.shape, tensor.dtype)
        _raise_first(optimizer, file, _problems_of_state(optimizer, values, parameter))


def _raise_first(optimizer: Optimizer, file: StrPath, problems: Iterator[str]) -> None:
    problem = next(problems, None)
    if problem is not None:
        raise ValueError(
            f"{file} cannot be loaded into {type(optimizer).__name__}: it holds {problem}. Resume "
            "with the model and optimizer that wrote it, or use another checkpoint."
        )


def _problems(
    optimizer: Any,
    state: Mapping[str, Any],
    parameters: list[list[ParameterShape]] | None,
    model: nn.Module | None,
) -> Iterator[str]:
    """Compare all groups, and the states of all parameters; only the first result counts."""
    if parameters is None:
        parameters = _shapes_of_groups(optimizer, model)
    groups = state.get("param_groups")
    if not isinstance(groups, list):
        groups = []
    if len(groups) != len(parameters):
        yield f"{len(groups)} parameter groups, but the optimizer has {len(parameters)}"

    # The parameter behind each number in the file. GaLore and APOLLO keep states of projected
    # gradients, whose shapes only they know.
    owners: dict[Any, ParameterShape | None] = {}
    for index, (group, expected) in enumerate(zip(groups, parameters, strict=True)):
        yield from _problems_of_group(optimizer, group, len(expected), index)
        for number, parameter in zip(group["params"], expected, strict=True):
            owners[number] = None if "rank" in group else parameter

    for number, values in state["state"].items():
        if number in owners:
            parameter = owners[number]
            if parameter is not None:
                yield from _problems_of_state(optimizer, values, parameter)
        # Steps in Python may keep states under other names, as LoRA-FA does for a pair of weights.
        elif isinstance(number, int) or _package_of(optimizer) is not None:
            yield f"the state of a parameter {number!r} that is not in its groups"

    # A layerwise optimizer has one for each parameter.
    layers = state.get("layers")
    layer_optimizers = getattr(optimizer, "optimizer_dict", None)
    if layers is None or layer_optimizers is None:
        return
    if len(layers) != len(layer_optimizers):
        yield f"the states of {len(layers)} layers, but the optimizer has {len(layer_optimizers)}"
    for layer_optimizer, layer_state in zip(layer_optimizers.values(), layers, strict=True):
        yield from _problems(layer_optimizer, layer_state, None, model)


def _problems_of_group(optimizer: Any, group: Any, expected: int, index: int) -> Iterator[str]:
    """Compare a group of the file with that of the optimizer: parameters, rules, options."""
    count = len(group["params"])
    if count != expected:
        yield f"{count} parameters in group {index}, but the optimizer has {expected}"
    rules = group.get("rules")
    optimizer_rules = optimizer.param_groups[index].get("rules")
    if rules != optimizer_rules:
        yield f"parameter_rules {rules} in group {index}, but the optimizer has {optimizer_rules}"

    # Compiled steps read options that are tensors, such as the learning rate, as numbers.
    if _package_of(optimizer) is None:
        return
    for name, option in group.items():
        for value in option if isinstance(option, (list, tuple)) else [option]:
            if isinstance(value, Tensor) and not _is_number(value):
                yield f"{describe_value(value)} as {name} of group {index}, not a number"


def _problems_of_state(
    optimizer: Optimizer, values: Mapping[str, object], parameter: ParameterShape
) -> Iterator[str]:
    """Compare the state of one parameter with the parameter."""
    package = _package_of(optimizer)
    if package is None:
        return
    for name, value in values.items():
        entry = f"{name} of {parameter.name}"
        if not isinstance(value, Tensor):
            continue
        if name in _NUMBER_ENTRIES:
            if not _is_number(value):
                yield f"{describe_value(value)} as {entry}, not a number"
        elif package == "bitsandbytes":
            size = _size_in_bitsandbytes(name, parameter.shape)
            if not _is_in_memory(value) or value.numel() < size:
                yield f"{describe_value(value)} as {entry}, which needs {size} elements"
        elif name not in _LIKE_PARAMETER:
            continue
        elif value.shape != parameter.shape or not _is_in_memory(value):
            yield f"{describe_value(value)} as {entry}, whose shape is {tuple(parameter.shape)}"
        elif value.dtype.is_floating_point != parameter.dtype.is_floating_point:
            yield f"{describe_value(value)} as {entry}, which is {parameter.dtype}"


def _size_in_bitsandbytes(name: str, shape: torch.Size) -> int:
    """Return how many elements of an entry the kernels of bitsandbytes read and write."""
    if name.startswith("state"):
        return math.prod(shape)
    if name.startswith("absmax"):  # one scale for each block of 256 elements
        return math.ceil(math.prod(shape) / 256)
    if name.startswith("qmap"):
        return 256
    return 1


def _is_number(tensor: Tensor) -> bool:
    return tensor.numel() == 1 and not tensor.is_complex()


def _is_in_memory(tensor: Tensor) -> bool:
    """Return whether a tensor has memory for each element, as kernels assume.

    A file can hold a tensor of any shape over a single number, by strides of 0.
    """
    if tensor.layout != torch.strided:
        return False
    return tensor.untyped_storage().nbytes() >= tensor.nbytes


def _shapes_of_groups(optimizer: Optimizer, model: nn.Module | None) -> list[list[ParameterShape]]:
    names: dict[int, str] = {}
    if model is not None:
        for name, parameter in model.named_parameters():
            names[id(parameter)] = name

    groups: list[list[ParameterShape]] = []
    for index, group in enumerate(optimizer.param_groups):
        shapes: list[ParameterShape] = []
        for parameter_index, tensor in enumerate(group["params"]):
            name = names.get(id(tensor), f"parameter {parameter_index} of group {index}")
            shapes.append(ParameterShape(name, tensor.shape, tensor.dtype))
        groups.append(shapes)
    return groups


def _package_of(optimizer: Optimizer) -> str | None:
    """Return the package in `_COMPILED` that an optimizer, or a base class of it, comes from."""
    for cls in type(optimizer).__mro__:
        package = cls.__module__.partition(".")[0]
        if package in _COMPILED and cls is not Optimizer:
            return package
    return None
