"""The calls of torch that a function made, recorded once to be made again for other tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_READ = "shape dtype device layout ndim is_meta is_cuda is_leaf is_sparse is_nested is_quantized requires_grad"
_ASKED = "size dim ndimension numel nelement element_size is_floating_point is_complex is_contiguous stride"
_SAME_FOR_A_SHAPE = frozenset(
    [
        *(getattr(Tensor, name).__get__ for name in _READ.split()),
        *(getattr(Tensor, name) for name in (*_ASKED.split(), "__len__", "__hash__")),
        *(torch.numel, torch.is_tensor, torch.is_floating_point, torch.is_complex),
    ]
)
"""What tells nothing about the values of a tensor."""

_SHAPED_BY_VALUES = frozenset(
    (
        *("nonzero", "argwhere", "masked_select", "bincount", "repeat_interleave"),
        *("unique", "unique_consecutive", "_unique", "_unique2"),
    )
)
_MAY_RETURN_ITSELF = frozenset(
    [Tensor.to, Tensor.contiguous, Tensor.type, Tensor.float, Tensor.int, Tensor.long, Tensor.bool, torch.as_tensor]
)
"""Functions that give the tensor itself back where nothing is to be done."""


class NotRecordableError(Exception):
    """Other tensors may have other calls made: Python has looked at values, or nobody knows what a call is given."""


class _Call(NamedTuple):
    function: Callable[..., Any]
    given: tuple[int, ...]
    """The places of its positional arguments among the values."""
    named: tuple[tuple[str, int], ...]
    to: int
    grad: bool
    unused: tuple[int, ...]
    """Places that nobody reads after it."""


class RecordedCalls:
    """Makes calls again that a `CallRecorder` has seen.

    The functions are those that were called, so autograd, autocast and random generators do as they did; what Python
    did between the calls is not repeated. A tensor that was neither an argument nor a result is read as it is then.

    Args:
        calls: in their order.
        values: of what is no argument and no result; None at all other places.
        arguments: the places of the tensors that they are made for.
        results: the places of what is returned.
    """

    def __init__(
        self, calls: Sequence[_Call], values: Sequence[Any], arguments: Sequence[int], results: Sequence[int]
    ) -> None:
        self._values = list(values)
        self._arguments = list(arguments)
        self._results = list(results)
        self._calls = list(_freeing(calls, set(results)))

    def __call__(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Return the results for these tensors, of the shapes and types of those that were recorded."""
        values = self._values.copy()
        for place, tensor in zip(self._arguments, tensors, strict=True):
            values[place] = tensor
        outer = torch.is_grad_enabled()
        for function, given, named, to, grad, unused in self._calls:
            arguments = [values[place] for place in given]
            keywords = {name: values[place] for name, place in named}
            if grad == outer:
                values[to] = function(*arguments, **keywords)
            else:
                with torch.set_grad_enabled(grad):
                    values[to] = function(*arguments, **keywords)
            for place in unused:
                values[place] = None
        return [values[place] for place in self._results]


def _freeing(calls: Sequence[_Call], kept: set[int]) -> Iterator[_Call]:
    """Yield the calls with the places that are read, or written, for the last time by each."""
    last: dict[int, int] = {}
    for number, call in enumerate(calls):
        for place in (*call.given, *(place for _, place in call.named), call.to):
            last[place] = number
    for number, call in enumerate(calls):
        yield call._replace(unused=tuple(p for p, user in last.items() if user == number and p not in kept))


class CallRecorder(TorchFunctionMode):
    """Notes each call of torch in a `with` block.

    Args:
        arguments: the tensors that the calls are made for.
    """

    def __init__(self, arguments: Sequence[Tensor]) -> None:
        super().__init__()
        self._calls: list[_Call] = []
        self._values: list[Any] = []
        self._places: dict[int, int] = {}
        """Of tensors, by their `id`."""
        self._alive: list[Any] = []
        self._refusal: str | None = None
        self._arguments = [self._place_of_result(tensor) for tensor in arguments]

    def recorded(self, results: Sequence[Tensor]) -> RecordedCalls:
        """Return the calls, to be made again.

        Args:
            results: tensors that they returned.

        Raises:
            NotRecordableError: other tensors may have other calls made.
        """
        places = [] if self._refusal else [self._place(tensor) for tensor in results]
        if self._refusal:
            raise NotRecordableError(self._refusal)
        return RecordedCalls(self._calls, self._values, self._arguments, places)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make a call, and note it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._refusal is None and func not in _SAME_FOR_A_SHAPE:
            self._note(func, args, kwargs, result)
        return result

    def _note(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        if isinstance(result, Tensor):
            if function in _MAY_RETURN_ITSELF and any(result is given for given in args):
                return
        elif not isinstance(result, (tuple, list)) or not any(isinstance(part, Tensor) for part in result):
            if not any(map(_has_tensor, (args, kwargs))):
                return  # a question about torch itself, such as its default type
            if function is not Tensor.__setitem__:
                return self._refuse(f"{_name(function)} tells Python about values")
        name = _name(function)
        if name in _SHAPED_BY_VALUES or (name == "where" and len(args) == 1) or _picks_by_mask(name, args):
            return self._refuse(f"{name} gives a shape that depends on values")
        given = tuple(map(self._place, args))
        named = tuple((key, self._place(value)) for key, value in kwargs.items())
        self._call(function, given, named, result)
        return None

    def _call(self, function: Any, given: tuple[int, ...], named: tuple[tuple[str, int], ...], result: Any) -> None:
        to = self._place_of_result(result)
        self._calls.append(_Call(function, given, named, to, torch.is_grad_enabled(), ()))
        if isinstance(result, (tuple, list)):
            for number, part in enumerate(result):
                if isinstance(part, Tensor):
                    part_of = (to, self._place(number))
                    self._call(_part, part_of, (), part)

    def _refuse(self, why: str) -> None:
        self._refusal = self._refusal or why

    def _place_of_result(self, value: Any) -> int:
        """Return where a value is that each run makes anew; that of a tensor that was changed in place stays."""
        if isinstance(value, Tensor) and id(value) in self._places:
            return self._places[id(value)]
        self._values.append(None)
        self._alive.append(value)  # or another tensor might get its id
        if isinstance(value, Tensor):
            self._places[id(value)] = len(self._values) - 1
        return len(self._values) - 1

    def _place(self, value: Any) -> int:
        """Return where an argument is: a result of an earlier call, or the same in each run."""
        if isinstance(value, Tensor):
            if id(value) not in self._places:
                if value.grad_fn is not None:
                    self._refuse("a tensor was computed by what torch does not show")
                place = self._place_of_result(value)
                self._values[place] = value
            return self._places[id(value)]
        if isinstance(value, (tuple, list)) and _has_tensor(value):
            to, parts = self._place_of_result(None), tuple(map(self._place, value))
            gathered = _list if isinstance(value, list) else _tuple
            self._calls.append(_Call(gathered, parts, (), to, torch.is_grad_enabled(), ()))
            return to
        if isinstance(value, torch.Generator) or _has_tensor(value):
            self._refuse(f"a call is given a {type(value).__name__}")
        self._values.append(value)
        self._alive.append(None)
        return len(self._values) - 1


def _name(function: Any) -> str:
    return getattr(function, "__name__", str(function))


def _part(values: Any, number: int) -> Any:
    return values[number]


def _list(*values: Any) -> list[Any]:
    return list(values)


def _tuple(*values: Any) -> tuple[Any, ...]:
    return values


def _has_tensor(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_tensor, value))
    if isinstance(value, dict):
        return any(map(_has_tensor, value.values()))
    if isinstance(value, slice):
        return any(map(_has_tensor, (value.start, value.stop, value.step)))
    return isinstance(value, Tensor)


def _picks_by_mask(name: str, args: Any) -> bool:
    """Tell whether rows are picked by booleans: so many as are true."""
    if name != "__getitem__":
        return False
    picked = args[1] if isinstance(args[1], tuple) else args[1:]
    return any(isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8) for part in picked)
