"""Number of items in an optimizer step, as a tensor that records whether it was used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_READS_THE_NUMBER = frozenset(
    {"item", "tolist", "numpy", "__array__", "__int__", "__float__", "__index__"}
)
"""Methods that convert the number to a Python or NumPy value, whose use cannot be tracked."""


class Use:
    """Records whether the number of items was used in a computation.

    Attributes:
        is_used: whether it was combined with another tensor, or converted to a Python number.
    """

    def __init__(self) -> None:
        self.is_used = False


class TrackedItems(Tensor):
    """`num_items_in_batch` of a micro-batch, which records whether the loss is computed from it.

    A model that divides the sum of its losses by the items of the whole step uses the number; a
    model whose loss is a mean only forwards it in `**kwargs`, or ignores it. The signature of
    `forward` does not distinguish the two.

    An operation on the number alone, such as a copy to another device, returns a `TrackedItems`
    that shares the `use` of the original. An operation with another tensor returns a plain tensor.
    Compiled code receives the plain number, and its use is recorded as well.

    Attributes:
        number: the plain tensor.
        use: see `Use`.
    """

    number: Tensor
    use: Use

    @classmethod
    def of(cls, number: Tensor | int, use: Use | None = None) -> TrackedItems:
        """Wrap a number; return a `TrackedItems` unchanged.

        Args:
            number: the number of items in the step.
            use: the `use` of the number from which this one was computed; by default a new one.
        """
        if isinstance(number, TrackedItems):
            return number
        if not isinstance(number, Tensor):
            number = torch.tensor(number, device="cpu")
        is_used = number.as_subclass(cls)
        is_used.number = number
        is_used.use = Use() if use is None else use
        return is_used

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Compute with the plain number, and record the use."""
        operands = _Operands()
        plain_args = [operands.unwrap(arg) for arg in args]
        plain_kwargs = {name: operands.unwrap(arg) for name, arg in (kwargs or {}).items()}
        result = func(*plain_args, **plain_kwargs)

        # If the number is combined with other tensors or leaves torch, the loss may depend on it.
        use = operands.use
        if use is None:
            return result
        if operands.other_tensors or getattr(func, "__name__", "") in _READS_THE_NUMBER:
            use.is_used = True
        elif isinstance(result, Tensor):
            return cls.of(result, use)
        return result


class _Operands:
    """Unwraps the arguments of an operation.

    Attributes:
        use: the `use` of the `TrackedItems` among the arguments; None if there is none.
        other_tensors: whether there are other tensors among the arguments.
    """

    def __init__(self) -> None:
        self.use: Use | None = None
        self.other_tensors = False

    def unwrap(self, argument: Any) -> object:
        """Return an argument with each `TrackedItems` replaced by the plain number.

        Lists and tuples are unwrapped recursively.
        """
        if isinstance(argument, TrackedItems):
            self.use = argument.use
            return argument.number
        if isinstance(argument, Tensor):
            self.other_tensors = True
        elif type(argument) in (list, tuple):
            return type(argument)([self.unwrap(part) for part in argument])
        return argument
