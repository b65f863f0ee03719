"""Check that the state of an optimizer fits its parameters before it is loaded.

torch does not check, and its fused steps, like those of other libraries, assume each tensor of the
state to be as large as the parameter: with a smaller one they write out of bounds.
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

_COUNTERS = {"step", "mu_product", "eta", "mu"}
"""Entries that are numbers, which some optimizers keep in tensors."""

_LIKE_PARAMETER = {
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
"""Entries of the parameter's shape, in the optimizers of `_NATIVE`."""

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
"""Root packages of optimizers with native steps, or steps that broadcast different shapes."""

_BITSANDBYTES = "bitsandbytes"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ParameterShape:
    """Description of a parameter that a state is compared with."""

    name: str
    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True)
class _Owner:
    """The parameter of a state, and the options of its group in the file."""

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
    """Compare the state of an optimizer with its parameters: their number, and the shapes and
    dtypes of the tensors.

    Args:
        optimizer: the optimizer to load the state into.
        state: the state read from a file.
        file: that file, for errors.
        model: knows the names of the parameters, for errors.
        groups: the whole parameters of each group, where the optimizer itself has parts of them.

    Raises:
        ValueError: something does not fit. Nothing has been loaded.
    """
    is_mapping = isinstance(state, Mapping) and isinstance(state.get("state"), Mapping)
    reads_own_form = (
        getattr(type(optimizer), "load_state_dict", None) is not Optimizer.load_state_dict
    )
    if reads_own_form and not (is_mapping and "param_groups" in state):
        return
    if not is_mapping:
        raise ValueError(
            f"{file} does not hold the state of an optimizer, but {describe_value(state)}."
        )

    if groups is None:
        groups = _own_groups(optimizer, model)
    problem = _problem_of_groups(optimizer, state, groups)
    if problem is not None:
        raise ValueError(_misfit(optimizer, file, problem, "Nothing of it was loaded."))

    # The optimizer of each parameter, in a layerwise one.
    inner = getattr(optimizer, "optimizer_dict", None)
    layers = state.get("layers")
    if not isinstance(inner, Mapping) or layers is None:
        return
    if not isinstance(layers, list) or len(layers) != len(inner):
        found = len(layers) if isinstance(layers, list) else "no"
        problem = f"the states of {found} layers, and there are {len(inner)}"
        raise ValueError(_misfit(optimizer, file, problem, "Nothing of it was loaded."))
    for layer_optimizer, layer_state in zip(inner.values(), layers, strict=True):
        require_fitting_optimizer_state(layer_optimizer, layer_state, file, model=model)


def require_fitting_present_state(optimizer: Any, file: StrPath) -> None:
    """As `require_fitting_optimizer_state`, for a state that has already been loaded by other code.

    Args:
        optimizer: has not made a step with it yet.
        file: the file of the state, for errors.

    Raises:
        ValueError: a tensor does not fit its parameter. The optimizer must not be used.
    """
    for tensor, values in optimizer.state.items():
        owner = _Owner(ParameterShape("a parameter", tensor.shape, tensor.dtype), {})
        problem = _problem_of_state(optimizer, values, owner)
        if problem is not None:
            raise ValueError(
                _misfit(optimizer, file, problem, "The training ends before a step with it.")
            )


def _misfit(optimizer: Any, file: StrPath, problem: str, outcome: str) -> str:
    return (
        f"{file} cannot be loaded into {type(optimizer).__name__}: it holds {problem}. {outcome} "
        "Resume with the model and optimizer that wrote it, or use another checkpoint."
    )


def _problem_of_groups(
    optimizer: Any, state: Mapping[str, Any], parameters: list[list[ParameterShape]]
) -> str | None:
    """Compare all groups, and the states of all parameters.

    Args:
        optimizer: the optimizer to load the state into.
        state: the state in the form of torch.
        parameters: those of each group.
    """
    own_groups = optimizer.param_groups
    groups = state.get("param_groups")
    if not isinstance(groups, list):
        return "no list of parameter groups"
    if len(groups) != len(own_groups):
        return f"{len(groups)} parameter groups, and there are {len(own_groups)}"

    owners: dict[Any, _Owner] = {}
    for index, (group, own_group, expected) in enumerate(
        zip(groups, own_groups, parameters, strict=True)
    ):
        numbers = group.get("params") if isinstance(group, Mapping) else None
        if not isinstance(numbers, list) or len(numbers) != len(expected):
            found = len(numbers) if isinstance(numbers, list) else "no"
            return f"{found} parameters in group {index}, and there are {len(expected)} in it"
        if group.get("rules") != own_group.get("rules"):
            return (
                f"parameter_rules {group.get('rules')} in group {index}, and they are "
                f"{own_group.get('rules')}"
            )
        for name, value in group.items():
            problem = _problem_of_option(value, own_group.get(name))
            if problem is not None and name not in ("params", "state"):
                return f"{problem} as {name} of group {index}, not a number"
        for number, parameter in zip(numbers, expected, strict=True):
            if not isinstance(number, (int, str)):
                return f"{describe_value(number)} as the number of a parameter"
            owners[number] = _Owner(parameter, group)

        # GrokAdamW keeps states in a group, by the place of the parameter.
        in_group = group.get("state")
        for place, values in in_group.items() if isinstance(in_group, dict) else ():
            if isinstance(place, int):
                if not 0 <= place < len(expected):
                    return f"the state of a parameter {place!r} that is in none of its groups"
                problem = _problem_of_state(optimizer, values, _Owner(expected[place], group))
                if problem is not None:
                    return problem

    for number, values in state["state"].items():
        if number not in owners:
            return f"the state of a parameter {number!r} that is in none of its groups"
        problem = _problem_of_state(optimizer, values, owners[number])
        if problem is not None:
            return problem
    return None


def _problem_of_option(value: Any, own: Any) -> str | None:
    """Check that an option that is a tensor has one element, as fused steps assume, or the
    present form.
    """
    for tensor in _tensors(value):
        has_present_form = isinstance(own, Tensor) and own.shape == tensor.shape
        if not has_present_form and not _is_number(tensor):
            return describe_value(tensor)
    return None


def _problem_of_state(optimizer: Any, values: Any, owner: _Owner) -> str | None:
    """Compare the state of one parameter with it."""
    parameter = owner.parameter
    if not isinstance(values, Mapping):
        return f"{describe_value(values)} as the state of {parameter.name}"
    if type(optimizer).__name__ == "LBFGS":  # its state belongs to no single parameter
        return None

    package = _package_of(type(optimizer))
    for name, value in values.items():
        where = f"{name} of {parameter.name}"
        if not isinstance(value, Tensor):
            if package in _NATIVE and name in _LIKE_PARAMETER and value is not None:
                return f"{describe_value(value)} as {where}"
            continue
        if name in _COUNTERS:
            if not _is_number(value):
                return f"{describe_value(value)} as {where}, not a number"
            continue

        shapes = _shapes_of(optimizer, package, name, owner)
        if shapes is None:  # only the optimizer knows
            continue
        if tuple(value.shape) not in shapes:
            sizes = " or ".join(map(str, shapes))
            return f"{describe_value(value)} as {where}, whose shape has to be {sizes}"
        if not _is_dense(value):
            return f"a tensor as {where} whose elements do not lie one after the other"
        if package == _BITSANDBYTES:
            if name in ("absmax1", "absmax2", "qmap1", "qmap2") and value.dtype != torch.float32:
                return f"{describe_value(value)} as {where}, which has to be float32"
        elif package in _NATIVE:
            own = parameter.dtype
            kind = (value.dtype.is_floating_point, value.dtype.is_complex)
            if kind != (own.is_floating_point, own.is_complex):
                return f"{describe_value(value)} as {where}, which is {own}"
    return None


def _shapes_of(optimizer: Any, package: str, name: str, owner: _Owner) -> tuple[Shape, ...] | None:
    """Return the shapes that a tensor of the state may have; None if only the optimizer knows."""
    shape = tuple(owner.parameter.shape)
    if "rank" in owner.group:  # GaLore, APOLLO: the states are those of a projection
        return None
    if package == _BITSANDBYTES:
        blocks = -(-math.prod(shape) // 256)  # elements of a scale
        # AdEMAMix has two first moments in one tensor, so twice as many scales.
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
        # That of torch, and that of transformers, which leaves out dimensions of size 1.
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
    if package in _NATIVE and name in _LIKE_PARAMETER:
        return (shape,)
    return None


def _is_number(tensor: Tensor) -> bool:
    return tensor.numel() == 1 and not tensor.is_complex() and _is_dense(tensor)


def _is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor is dense in memory, as kernels assume.

    A file can hold a tensor of any shape over a single number, by strides of 0.
    """
    if tensor.layout != torch.strided or tensor.is_quantized:
        return False
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected and tensor.numel():
                return False
            expected *= size
    return True


def _own_groups(optimizer: Any, model: nn.Module | None) -> list[list[ParameterShape]]:
    names = (
        {}
        if model is None
        else {id(parameter): name for name, parameter in model.named_parameters()}
    )
    groups: list[list[ParameterShape]] = []
    for index, group in enumerate(optimizer.param_groups):
        shapes: list[ParameterShape] = []
        for place, tensor in enumerate(group["params"]):
            name = names.get(id(tensor), f"parameter {place} of group {index}")
            shapes.append(ParameterShape(name, tensor.shape, tensor.dtype))
        groups.append(shapes)
    return groups


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _package_of(cls: type) -> str:
    """Return the package of a class, or the known one of a base class."""
    roots = [base.__module__.partition(".")[0] for base in cls.__mro__ if base is not Optimizer]
    for root in roots:
        if root in _NATIVE or root == _BITSANDBYTES:
            return root
    return roots[0]
