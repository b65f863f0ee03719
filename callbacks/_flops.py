"""Counts the floating point operations of what really runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


class FlopCount(TorchDispatchMode):
    """As `torch.utils.flop_counter.FlopCounterMode`, whose formulas it uses, but by type of the numbers.

    Attention on the CPU is counted as well, and no hooks are put on modules. Nothing of the results changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_type: Counter[str] = Counter()
        """Operations by the type of the first factor, such as `bfloat16`."""
        self._formulas = _formulas()

    @property
    def total(self) -> int:
        """Operations of all types."""
        return self.by_type.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        formula = self._formulas.get(getattr(func, "_overloadpacket", None))
        if formula is not None:
            kind = next((str(arg.dtype) for arg in args if isinstance(arg, torch.Tensor)), "torch.float32")
            self.by_type[kind.removeprefix("torch.")] += int(formula(*args, **kwargs, out_val=out))
        return out


def _formulas() -> dict[Any, Any]:
    known = FlopCounterMode(display=False).flop_registry
    aten = torch.ops.aten
    same = {
        "_scaled_dot_product_flash_attention_for_cpu": aten._scaled_dot_product_flash_attention,
        "_scaled_dot_product_flash_attention_for_cpu_backward": aten._scaled_dot_product_flash_attention_backward,
    }
    return {**known, **{getattr(aten, name): known[as_in] for name, as_in in same.items() if as_in in known}}
