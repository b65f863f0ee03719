"""Avoid importing torch's compiler unless something is compiled.

Importing `torch._dynamo` takes half as long as importing torch, and each torch optimizer imports it
to exclude itself from compilation. That is not necessary while it is not imported.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import torch
from torch.optim import Optimizer

try:
    from torch._compile import _disable_dynamo
except ImportError:
    # In a torch version with other names, use torch's own function, which imports the compiler.
    from torch._dynamo import disable as _disable_dynamo

DYNAMO = "torch._dynamo"
_METHODS = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def disable_dynamo(function: Any = None, recursive: bool = True, **_: object) -> Any:
    """Exclude a function from compilation, as `torch.compiler.disable`, without loading the
    compiler.
    """
    if function is None:
        return functools.partial(disable_dynamo, recursive=recursive)
    disabled: Any = _disable_dynamo(function, recursive)
    _bypass_dynamo(disabled)
    return disabled


def build_optimizers_without_compiler() -> None:
    """Create torch's optimizers, and get and set their states, without importing the compiler."""
    for name in _METHODS:
        method = getattr(Optimizer, name)
        if hasattr(method, "__wrapped__"):
            _bypass_dynamo(method)


def step_without_compiler(optimizer: torch.optim.Optimizer) -> None:
    """Take steps of a torch optimizer without importing the compiler.

    Optimizers of other libraries are not changed. Step hooks are still called. Call this before
    creating a schedule, which wraps the step.
    """
    if "step" in getattr(optimizer, "__dict__", {}):
        # Already done, or another library has replaced the step.
        return

    # torch wraps `step` in a function `_use_grad`, which imports the compiler.
    class_step = getattr(type(optimizer), "step", None)
    guarded: Any = getattr(class_step, "__wrapped__", None)
    code = getattr(guarded, "__code__", None)
    is_of_torch = getattr(code, "co_name", "") == "_use_grad"
    if not is_of_torch or optimizer.defaults["differentiable"] or DYNAMO in sys.modules:
        return

    step = torch.no_grad()(guarded.__wrapped__)
    optimizer.step = types.MethodType(Optimizer.profile_hook_step(step), optimizer)


def _bypass_dynamo(disabled: Any) -> None:
    """Call a function without its wrapper `_disable_dynamo` while the compiler is not imported.

    The wrapper imports the compiler at the first call, and caches the function to call in the
    attribute `__dynamo_disable`. In a torch version without that attribute, the compiler is
    imported as usual.
    """
    function = disabled.__wrapped__

    @functools.wraps(function)
    def without_dynamo(*args: Any, **kwargs: Any) -> object:
        if DYNAMO not in sys.modules:
            return function(*args, **kwargs)
        if vars(function).get("__dynamo_disable") is without_dynamo:
            # The compiler has been imported, so use torch's own wrapper from now on.
            del function.__dynamo_disable
        return disabled(*args, **kwargs)

    if DYNAMO not in sys.modules and not hasattr(function, "__dynamo_disable"):
        function.__dynamo_disable = without_dynamo
