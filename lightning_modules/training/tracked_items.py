"""The number of items of an optimizer step, as a tensor that records whether it was used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_READS_THE_NUMBER = frozenset(
    {"item", "tolist", "numpy", "__array__", "__int__", "__float__", "__index__"}
)
"""Methods that return the number to Python, where its use cannot be followed any more."""


class Use:
    """Whether the number of items has taken part in a computation.

    Attributes:
        is_used: it was combined with another tensor, or read as a Python number.
    """

    def __init__(self) -> None:
        self.is_used = False


class TrackedItems(Tensor):
    """`num_items_in_batch` of a micro-batch, which records whether the loss is computed from it.

    A model that divides the sum of its losses by the items of the whole step reads the number; a
    model whose loss is a mean passes it on, in `**kwargs`, or drops it. The signature of `forward`
    does not tell the two apart.

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
        """Wrap a number; return it unchanged if it is wrapped already.

        Args:
            number: the items of the step.
            use: the use of a number from which this one was computed; by default a new one.
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

        # Where the number meets other tensors or leaves torch, the loss may be computed from it.
        use = operands.use
        if use is None:
            return result
        if operands.other_tensors or getattr(func, "__name__", "") in _READS_THE_NUMBER:
            use.is_used = True
        elif isinstance(result, Tensor):
            return cls.of(result, use)
        return result


class _Operands:
    """The arguments of one operation.

    Attributes:
        use: the use of the number of items among them.
        other_tensors: whether there are other tensors among them.
    """

    def __init__(self) -> None:
        self.use: Use | None = None
        self.other_tensors = False

    def unwrap(self, argument: Any) -> object:
        """Return an argument with the plain number instead of a `TrackedItems`.

        Those in lists and tuples are replaced, too.
        """
        if isinstance(argument, TrackedItems):
            self.use = argument.use
            return argument.number
        if isinstance(argument, Tensor):
            self.other_tensors = True
        elif type(argument) in (list, tuple):
            return type(argument)([self.unwrap(part) for part in argument])
        return argument
