"""Check that the state of an optimizer fits its parameters before it is loaded.

torch does not check it. Fused kernels of torch and other libraries assume that each state tensor is
as large as the parameter, and write out of bounds if it is smaller.
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

_NUMBER_ENTRIES = {"step", "mu_product", "eta", "mu"}
"""Entries that are numbers, which some optimizers store in tensors."""

_ENTRIES_LIKE_PARAMETER = {
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
}
"""Entries with the shape of the parameter, in optimizers of the `_NATIVE` packages."""

_NATIVE = {
    "torch",
    "torch_npu",
    "torch_xla",
    "torchao",
    "apex",
    "optimi",
    "deepspeed",
    "schedulefree",
}
"""Packages whose optimizers use native kernels or broadcast wrong shapes silently."""

_BITSANDBYTES = "bitsandbytes"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ParameterShape:
    """Name, shape and dtype of a parameter that a state is compared with."""

    name: str
    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True)
class _StateOwner:
    """Parameter of a state, and the options of its group in the file."""

    parameter: ParameterShape
    group: Mapping[str, Any]


def require_fitting_optimizer_state(
    optimizer: Any,
    state: Any,
    file: StrPath,
    *,
    model: nn.Module | None = None,
    groups: list[list[ParameterShape]] | None = None,
) -> None:
    """Check that an optimizer state fits the parameters: their number, shapes and dtypes.

    Args:
        optimizer: the optimizer to load the state into.
        state: the state read from a file.
        file: the file, for errors.
        model: provides the names of the parameters, for errors.
        groups: the unsharded parameters of each group, if those of the optimizer are sharded.

    Raises:
        ValueError: the state does not fit. Nothing has been loaded.
    """
    is_mapping = isinstance(state, Mapping) and isinstance(state.get("state"), Mapping)
    # A class with another state format must check it itself.
    load_state_dict = getattr(type(optimizer), "load_state_dict", None)
    has_other_format = load_state_dict is not Optimizer.load_state_dict
    if has_other_format and not (is_mapping and "param_groups" in state):
        return
    if not is_mapping:
        raise ValueError(
            f"{file} does not hold the state of an optimizer, but {describe_value(state)}."
        )

    if groups is None:
        groups = _shapes_of_groups(optimizer, model)
    problem = _problem_of_groups(optimizer, state, groups)
    if problem is not None:
        raise ValueError(_error_message(optimizer, file, problem, "Nothing was loaded."))

    # Check the inner optimizers of a layerwise optimizer.
    layer_optimizers = getattr(optimizer, "optimizer_dict", None)
    layer_states = state.get("layers")
    if not isinstance(layer_optimizers, Mapping) or layer_states is None:
        return
    problem = _problem_of_length(layer_states, len(layer_optimizers), "the states of {} layers")
    if problem is not None:
        raise ValueError(_error_message(optimizer, file, problem, "Nothing was loaded."))
    for layer_optimizer, layer_state in zip(layer_optimizers.values(), layer_states, strict=True):
        require_fitting_optimizer_state(layer_optimizer, layer_state, file, model=model)


def require_fitting_loaded_state(optimizer: torch.optim.Optimizer, file: StrPath) -> None:
    """Check a loaded state as `require_fitting_optimizer_state` does.

    Args:
        optimizer: an optimizer that has not taken a step since loading.
        file: the file of the state, for errors.

    Raises:
        ValueError: a tensor does not fit its parameter. The optimizer must not be used any more.
    """
    for tensor, values in optimizer.state.items():
        owner = _StateOwner(ParameterShape("a parameter", tensor.shape, tensor.dtype), {})
        problem = _problem_of_state(optimizer, values, owner)
        if problem is not None:
            raise ValueError(
                _error_message(optimizer, file, problem, "Training stops before a step uses it.")
            )


def _error_message(
    optimizer: torch.optim.Optimizer, file: StrPath, problem: str, outcome: str
) -> str:
    return (
        f"{file} cannot be loaded into {type(optimizer).__name__}: it holds {problem}. {outcome} "
        "Resume with the model and optimizer that wrote it, or use another checkpoint."
    )


def _problem_of_groups(
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    parameters: list[list[ParameterShape]],
) -> str | None:
    """Check all groups and the states of all parameters.

    Args:
        optimizer: the optimizer to load the state into.
        state: the state in torch's format.
        parameters: the parameters of each group.
    """
    optimizer_groups = optimizer.param_groups
    groups = state.get("param_groups")
    if not isinstance(groups, list):
        return "no list of parameter groups"
    if len(groups) != len(optimizer_groups):
        return f"{len(groups)} parameter groups, but the optimizer has {len(optimizer_groups)}"

    # Map the numbers in the file to parameters.
    owners: dict[int | str, _StateOwner] = {}
    for index, (group, optimizer_group, expected) in enumerate(
        zip(groups, optimizer_groups, parameters, strict=True)
    ):
        problem = _problem_of_group(optimizer, index, group, optimizer_group, expected)
        if problem is not None:
            return problem
        for number, parameter in zip(group["params"], expected, strict=True):
            owners[number] = _StateOwner(parameter, group)

    # Optimizers in Python may use other keys, as LoRA-FA does for a pair of weights.
    has_other_names = _package_of(type(optimizer)) not in _NATIVE
    has_other_names = has_other_names and all(isinstance(number, int) for number in owners)
    for number, values in state["state"].items():
        if isinstance(number, str) and has_other_names:
            continue
        if number not in owners:
            return f"the state of a parameter {number!r} that is not in its groups"
        problem = _problem_of_state(optimizer, values, owners[number])
        if problem is not None:
            return problem
    return None


def _problem_of_group(
    optimizer: torch.optim.Optimizer,
    index: int,
    group: Any,
    optimizer_group: Mapping[str, object],
    expected: list[ParameterShape],
) -> str | None:
    """Check a group in the file against the optimizer's: parameters, rules and options."""
    numbers: Any = None
    if isinstance(group, Mapping):
        numbers = group.get("params")
    problem = _problem_of_length(numbers, len(expected), f"{{}} parameters in group {index}")
    if problem is not None:
        return problem
    for number in numbers:
        if not isinstance(number, (int, str)):
            return f"{describe_value(number)} as the number of a parameter"

    rules = optimizer_group.get("rules")
    if group.get("rules") != rules:
        return (
            f"parameter_rules {group.get('rules')} in group {index}, but the optimizer has {rules}"
        )
    for name, value in group.items():
        problem = _problem_of_option(value, optimizer_group.get(name))
        if problem is not None and name not in ("params", "state"):
            return f"{problem} as {name} of group {index}, not a number"

    # GrokAdamW stores states in its groups by parameter index.
    group_state = group.get("state")
    if not isinstance(group_state, dict):
        return None
    for parameter_index, values in group_state.items():
        if not isinstance(parameter_index, int):
            continue
        if not 0 <= parameter_index < len(expected):
            return f"the state of a parameter {parameter_index!r} that is not in its groups"
        owner = _StateOwner(expected[parameter_index], group)
        problem = _problem_of_state(optimizer, values, owner)
        if problem is not None:
            return problem
    return None


def _problem_of_length(entries: object, expected: int, description: str) -> str | None:
    """Check that a value is a list of the expected length.

    Args:
        entries: the value in the file.
        expected: the length in the optimizer.
        description: description of the entries, with "{}" for their number.
    """
    if not isinstance(entries, list):
        return f"{description.format('no')}, but the optimizer has {expected}"
    if len(entries) != expected:
        return f"{description.format(len(entries))}, but the optimizer has {expected}"
    return None


def _problem_of_option(value: object, optimizer_value: object) -> str | None:
    """Check that a tensor option has one element or the same shape as in the optimizer.

    Fused kernels rely on that.
    """
    for tensor in _tensors(value):
        has_shape = isinstance(optimizer_value, Tensor) and optimizer_value.shape == tensor.shape
        if not has_shape and not _is_number(tensor):
            return describe_value(tensor)
    return None


def _problem_of_state(
    optimizer: torch.optim.Optimizer, values: object, owner: _StateOwner
) -> str | None:
    """Check the state of one parameter."""
    parameter = owner.parameter
    if not isinstance(values, Mapping):
        return f"{describe_value(values)} as the state of {parameter.name}"
    # LBFGS has a single state for all parameters.
    if type(optimizer).__name__ == "LBFGS":
        return None

    package = _package_of(type(optimizer))
    for name, value in values.items():
        if isinstance(value, Tensor):
            problem = _problem_of_tensor(optimizer, package, name, value, owner)
            if problem is not None:
                return problem
        elif package in _NATIVE and name in _ENTRIES_LIKE_PARAMETER and value is not None:
            return f"{describe_value(value)} as {name} of {parameter.name}"
    return None


def _problem_of_tensor(
    optimizer: torch.optim.Optimizer, package: str, name: str, value: Tensor, owner: _StateOwner
) -> str | None:
    """Check a state tensor against its parameter."""
    entry = f"{name} of {owner.parameter.name}"
    if name in _NUMBER_ENTRIES:
        if not _is_number(value):
            return f"{describe_value(value)} as {entry}, not a number"
        return None

    shapes = _possible_shapes(optimizer, package, name, owner)
    if shapes is None:
        return None
    if tuple(value.shape) not in shapes:
        sizes = " or ".join(map(str, shapes))
        return f"{describe_value(value)} as {entry}, whose shape must be {sizes}"
    if not _is_dense(value):
        return f"a tensor as {entry} whose elements are not contiguous in memory"

    # bitsandbytes kernels read scales and tables as float32 without checking.
    if package == _BITSANDBYTES:
        if name in ("absmax1", "absmax2", "qmap1", "qmap2") and value.dtype != torch.float32:
            return f"{describe_value(value)} as {entry}, which must be float32"
    elif package in _NATIVE:
        expected = owner.parameter.dtype
        is_same_kind = (
            value.dtype.is_floating_point == expected.is_floating_point
            and value.dtype.is_complex == expected.is_complex
        )
        if not is_same_kind:
            return f"{describe_value(value)} as {entry}, which must be {expected}"
    return None


def _possible_shapes(
    optimizer: torch.optim.Optimizer, package: str, name: str, owner: _StateOwner
) -> tuple[Shape, ...] | None:
    """Return the shapes that a state tensor may have; None if they are unknown."""
    shape = tuple(owner.parameter.shape)
    # GaLore and APOLLO have states of projected gradients.
    if "rank" in owner.group:
        return None
    if package == _BITSANDBYTES:
        # Each block of 256 elements has one scale. AdEMAMix stores two first moments in one tensor,
        # so it has twice as many scales.
        blocks = math.ceil(math.prod(shape) / 256)
        return {
            "state1": (shape, (2, *shape)),
            "state2": (shape,),
            "absmax1": ((blocks,), (2, blocks)),
            "absmax2": ((blocks,),),
            "qmap1": ((256,),),
            "qmap2": ((256,),),
            "max1": ((1,),),
            "new_max1": ((1,),),
            "max2": ((1,),),
            "new_max2": ((1,),),
            "unorm_vec": ((1,),),
            "gnorm_vec": ((100,),),
        }.get(name)
    if type(optimizer).__name__ == "Adafactor" or name in ("row_var", "col_var"):
        # Entries of torch's Adafactor, and of transformers', which drops dimensions of size 1.
        return {
            "row_var": ((*shape[:-1], 1),),
            "col_var": ((*shape[:-2], 1, *shape[-1:]),),
            "variance": (shape,),
            "exp_avg": (shape,),
            "exp_avg_sq": (shape,),
            "exp_avg_sq_row": (shape[:-1],),
            "exp_avg_sq_col": (shape[:-2] + shape[-1:],),
            "RMS": ((),),
        }.get(name)
    if package in _NATIVE and name in _ENTRIES_LIKE_PARAMETER:
        return (shape,)
    return None


def _is_number(tensor: Tensor) -> bool:
    return tensor.numel() == 1 and not tensor.is_complex() and _is_dense(tensor)


def _is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor is dense in memory, as native kernels assume.

    With strides of 0, a tensor of any shape in a file may be backed by a single number.
    """
    if tensor.layout != torch.strided or tensor.is_quantized:
        return False
    if tensor.numel() == 0:
        return True

    # From the innermost dimension outwards, each stride is the number of elements within it.
    expected_stride = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected_stride:
            return False
        expected_stride *= size
    return True


def _shapes_of_groups(
    optimizer: torch.optim.Optimizer, model: nn.Module | None
) -> list[list[ParameterShape]]:
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


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _package_of(cls: type) -> str:
    """Return the package of a class, or that of a base class which is checked here."""
    packages = [base.__module__.partition(".")[0] for base in cls.__mro__ if base is not Optimizer]
    for package in packages:
        if package in _NATIVE or package == _BITSANDBYTES:
            return package
    return packages[0]
