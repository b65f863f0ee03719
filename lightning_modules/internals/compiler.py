"""Leave torch's compiler unloaded as long as nothing is compiled.

`torch._dynamo` takes half as long to import as torch itself, and each of torch's optimizers imports
it to exclude itself from compilation. While it is not loaded nothing is compiled.
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
    # A torch with other names: use its own function, which loads the compiler at once, so that this
    # module has no effect.
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
    """Make, read and load torch's optimizers without loading the compiler."""
    for name in _METHODS:
        method = getattr(Optimizer, name)
        if hasattr(method, "__wrapped__"):
            _bypass_dynamo(method)


def step_without_compiler(optimizer: torch.optim.Optimizer) -> None:
    """Make the steps of one of torch's optimizers without loading the compiler.

    Optimizers of other libraries are not changed. Hooks around the step are still called. Call this
    before a schedule is made, which wraps the step.
    """
    if "step" in getattr(optimizer, "__dict__", {}):
        # This was done before, or another library has replaced the step.
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
    """Call a function without its wrapper `_disable_dynamo` while the compiler is not loaded.

    The wrapper loads the compiler at the first call, and stores the function that it calls from
    then on as its attribute `__dynamo_disable`. In a torch without that attribute the compiler is
    loaded as usual.
    """
    function = disabled.__wrapped__

    @functools.wraps(function)
    def without_dynamo(*args: Any, **kwargs: Any) -> object:
        if DYNAMO not in sys.modules:
            return function(*args, **kwargs)
        if vars(function).get("__dynamo_disable") is without_dynamo:
            # The compiler has been loaded: use torch's own wrapper from now on.
            del function.__dynamo_disable
        return disabled(*args, **kwargs)

    if DYNAMO not in sys.modules and not hasattr(function, "__dynamo_disable"):
        function.__dynamo_disable = without_dynamo
