"""Check that the state of an optimizer fits its parameters before it is loaded.

torch does not check, and its fused steps, like those of other libraries, assume each tensor of the state to be as large
as the parameter: with a smaller one they write out of bounds.
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
from ..common.torch_files import kind_of

_COUNTERS = {"step", "mu_product", "eta", "mu"}
"""Entries that are numbers, which some optimizers keep in tensors."""

_LIKE_PARAMETER = {
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "exp_avg_slow", "exp_avg_lr_1", "exp_avg_lr_2"),
    *("momentum_buffer", "square_avg", "grad_avg", "acc_delta", "sum", "prev", "step_size", "ax", "z"),
    "kahan_comp",
}
"""Entries of the parameter's shape, in the optimizers of `_ELEMENTWISE`."""

_ELEMENTWISE = {"torch", "torch_npu", "torch_xla", "torchao", "apex", "optimi", "deepspeed", "schedulefree"}
"""Root packages of optimizers with native steps, or steps that broadcast different shapes."""

_LISTS = {"LBFGS"}
"""Classes whose state belongs to no single parameter."""

_BITSANDBYTES = "bitsandbytes"


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
    """Compare the state of an optimizer with its parameters: their number, and the shapes and dtypes of the tensors.

    Args:
        optimizer: the optimizer to load the state into.
        state: the state read from a file.
        file: that file, for errors.
        model: knows the names of the parameters, for errors.
        groups: the whole parameters of each group, where the optimizer itself has parts of them.

    Raises:
        ValueError: something does not fit. Nothing has been loaded.
    """
    in_torch_form = isinstance(state, Mapping) and isinstance(state.get("state"), Mapping) and "param_groups" in state
    if not in_torch_form and _reads_own_form(optimizer):
        return
    if not isinstance(state, Mapping) or not isinstance(state.get("state"), Mapping):
        raise ValueError(f"{file} does not hold the state of an optimizer, but {kind_of(state)}.")
    fitting = _Fitting(optimizer, file, _own_groups(optimizer, model) if groups is None else groups)
    fitting.check(state)
    inner, layers = getattr(optimizer, "optimizer_dict", None), state.get("layers")
    if isinstance(inner, Mapping) and layers is not None:
        fitting.require(
            isinstance(layers, list) and len(layers) == len(inner),
            f"the states of {len(layers) if isinstance(layers, list) else 'no'} layers, and there are {len(inner)}",
        )
        for one, written in zip(inner.values(), layers, strict=True):
            require_fitting_optimizer_state(one, written, file, model=model)


def require_fitting_present_state(optimizer: Any, file: StrPath) -> None:
    """As `require_fitting_optimizer_state`, for a state that has already been loaded by other code.

    Args:
        optimizer: has not made a step with it yet.
        file: the file of the state, for errors.

    Raises:
        ValueError: a tensor does not fit its parameter. The optimizer must not be used.
    """
    fitting = _Fitting(optimizer, file, [], outcome="The training ends before a step with it.")
    described = [ParameterShape("a parameter", one.shape, one.dtype) for one in optimizer.state]
    owners: dict[Any, Any] = {place: (one, {}) for place, one in enumerate(described)}
    fitting.check_states(dict(enumerate(optimizer.state.values())), owners)


def _reads_own_form(optimizer: Any) -> bool:
    """Return whether an optimizer has its own `load_state_dict`, which may read states of any form."""
    return getattr(type(optimizer), "load_state_dict", None) is not Optimizer.load_state_dict


class _Fitting:
    """Check of one optimizer's state."""

    def __init__(
        self,
        optimizer: Any,
        file: StrPath,
        groups: list[list[ParameterShape]],
        outcome: str = "Nothing of it was loaded.",
    ) -> None:
        self.optimizer, self.file, self.groups, self.outcome = optimizer, file, groups, outcome
        self.package = _package_of(type(optimizer))

    def require(self, fits: bool, problem: str) -> None:
        """Raise an error with the problem unless the state fits."""
        if not fits:
            raise ValueError(
                f"{self.file} cannot be loaded into {type(self.optimizer).__name__}: it holds {problem}. "
                f"{self.outcome} Go on with the model and the optimizer that wrote it, or take another checkpoint."
            )

    def check(self, state: Mapping[str, Any]) -> None:
        """Compare all groups, and the states of all parameters."""
        own, written = self.optimizer.param_groups, state.get("param_groups")
        self.require(isinstance(written, list), "no list of parameter groups")
        assert isinstance(written, list)
        self.require(len(written) == len(own), f"{len(written)} parameter groups, and there are {len(own)}")
        owners: dict[Any, tuple[ParameterShape, Mapping[str, Any]]] = {}
        for index, (group, parameters, theirs) in enumerate(zip(own, self.groups, written, strict=True)):
            numbers = theirs.get("params") if isinstance(theirs, Mapping) else None
            count, expected = len(numbers) if isinstance(numbers, list) else "no", len(parameters)
            self.require(count == expected, f"{count} parameters in group {index}, and there are {expected} in it")
            assert isinstance(numbers, list)
            assert isinstance(theirs, Mapping)
            rules = theirs.get("rules"), group.get("rules")
            self.require(rules[0] == rules[1], f"parameter_rules {rules[0]} in group {index}, and they are {rules[1]}")
            self._check_options(group, theirs, index)
            for number, parameter in zip(numbers, parameters, strict=True):
                self.require(isinstance(number, (int, str)), f"{kind_of(number)} as the number of a parameter")
                owners[number] = parameter, theirs
            self.check_states(_states_in_group(theirs), dict(enumerate(owners[number] for number in numbers)))
        self.check_states(state["state"], owners)

    def _check_options(self, own: Mapping[str, Any], written: Mapping[str, Any], index: int) -> None:
        """Check that options that are tensors have one element; fused steps do not check it."""
        for name, value in written.items():
            if name in ("params", "state"):
                continue
            present = own.get(name)
            for tensor in _tensors(value):
                same = isinstance(present, Tensor) and present.shape == tensor.shape
                plain = tensor.numel() == 1 and not tensor.is_complex() and _is_dense(tensor)
                self.require(same or plain, f"{kind_of(tensor)} as {name} of group {index}, not a number")

    def check_states(
        self, states: Mapping[Any, Any], owners: Mapping[Any, tuple[ParameterShape, Mapping[str, Any]]]
    ) -> None:
        """Compare the states of parameters, by number, with the parameters of these numbers."""
        for number, values in states.items():
            self.require(number in owners, f"the state of a parameter {number!r} that is in none of its groups")
            shape, group = owners[number]
            self.require(isinstance(values, Mapping), f"{kind_of(values)} as the state of {shape.name}")
            if type(self.optimizer).__name__ in _LISTS:
                continue
            for name, value in values.items():
                if isinstance(value, Tensor):
                    self._check_tensor(str(name), value, shape, group)
                elif self._is_native and name in _LIKE_PARAMETER:
                    self.require(value is None, f"{kind_of(value)} as {name} of {shape.name}")

    @property
    def _is_native(self) -> bool:
        return self.package in _ELEMENTWISE

    def _check_tensor(self, name: str, value: Tensor, parameter: ParameterShape, group: Mapping[str, Any]) -> None:
        where = f"{name} of {parameter.name}"
        if name in _COUNTERS:
            number = value.numel() == 1 and not value.is_complex() and _is_dense(value)
            self.require(number, f"{kind_of(value)} as {where}, not a number")
            return
        wanted = self._sizes(name, parameter, group)
        if wanted is None:
            return
        sizes = " or ".join(str(tuple(size)) for size in wanted)
        self.require(value.shape in wanted, f"{kind_of(value)} as {where}, whose shape has to be {sizes}")
        self.require(_is_dense(value), f"a tensor as {where} whose elements do not lie one after the other")
        if self.package != _BITSANDBYTES:
            kinds = {(dtype.is_floating_point, dtype.is_complex) for dtype in (value.dtype, parameter.dtype)}
            alike = len(kinds) == 1 or not self._is_native
            self.require(alike, f"{kind_of(value)} as {where}, which is {parameter.dtype}")
        elif name in ("absmax1", "absmax2", "qmap1", "qmap2"):
            self.require(value.dtype == torch.float32, f"{kind_of(value)} as {where}, which has to be float32")

    def _sizes(self, name: str, parameter: ParameterShape, group: Mapping[str, Any]) -> tuple[torch.Size, ...] | None:
        """Return the shapes that a tensor of the state may have; None if only the optimizer knows."""
        shape = parameter.shape
        if "rank" in group:  # GaLore, APOLLO: the states are those of a projection
            return None
        if self.package == _BITSANDBYTES:
            return _bitsandbytes_sizes(name, shape)
        if type(self.optimizer).__name__ == "Adafactor" or name in ("row_var", "col_var"):
            return _adafactor_sizes(name, shape)
        if not self._is_native or name not in _LIKE_PARAMETER:
            return None
        return (shape,)


def _adafactor_sizes(name: str, shape: torch.Size) -> tuple[torch.Size, ...] | None:
    """Return the shapes of Adafactor: torch's, and transformers' without dimensions of size 1."""
    known = {
        "row_var": (*shape[:-1], 1),
        "col_var": (*shape[:-2], 1, *shape[-1:]),
        **dict.fromkeys(("variance", "exp_avg", "exp_avg_sq"), shape),
        "exp_avg_sq_row": shape[:-1],
        "exp_avg_sq_col": shape[:-2] + shape[-1:],
        "RMS": torch.Size(),
    }
    return (torch.Size(known[name]),) if name in known else None


def _bitsandbytes_sizes(name: str, shape: torch.Size) -> tuple[torch.Size, ...] | None:
    """Return the shapes of bitsandbytes; AdEMAMix has two first moments in one tensor, so twice as many scales."""
    blocks = -(-math.prod(shape) // 256)  # elements of a scale
    known: dict[str, tuple[tuple[int, ...], ...]] = {
        "state1": (shape, (2, *shape)),
        "state2": (shape,),
        "absmax1": ((blocks,), (2, blocks)),
        "absmax2": ((blocks,),),
        **dict.fromkeys(("qmap1", "qmap2"), ((256,),)),
        **dict.fromkeys(("max1", "new_max1", "max2", "new_max2"), ((1,),)),
        "unorm_vec": ((1,),),
        "gnorm_vec": ((100,),),
    }
    return tuple(map(torch.Size, known[name])) if name in known else None


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


def _states_in_group(group: Mapping[str, Any]) -> Mapping[Any, Any]:
    """Return the states that GrokAdamW keeps in a parameter group, by parameter index."""
    found = group.get("state")
    return {place: state for place, state in found.items() if isinstance(place, int)} if isinstance(found, dict) else {}


def _own_groups(optimizer: Any, model: nn.Module | None) -> list[list[ParameterShape]]:
    names = {} if model is None else {id(parameter): name for name, parameter in model.named_parameters()}
    return [
        [
            ParameterShape(names.get(id(one), f"parameter {place} of group {index}"), one.shape, one.dtype)
            for place, one in enumerate(group["params"])
        ]
        for index, group in enumerate(optimizer.param_groups)
    ]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


def _package_of(cls: type) -> str:
    """Return the package of a class, or the known one of a base class."""
    roots = [base.__module__.partition(".")[0] for base in cls.__mro__ if base is not Optimizer]
    return next((root for root in roots if root in _ELEMENTWISE or root == _BITSANDBYTES), roots[0])
