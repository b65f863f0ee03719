"""Studies of optuna in which several processes train each trial together.

For any training loop, and for `facade/search`. Imports `common`, `internals` and `distributed`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .pruning import OptunaPruningCallback
    from .together import optimize_together

__all__ = ["OptunaPruningCallback", "optimize_together"]


def __getattr__(name: str) -> Any:
    # One needs Lightning, the other torch; whoever wants one should not wait for both.
    from importlib import import_module

    homes = {"OptunaPruningCallback": "pruning", "optimize_together": "together"}
    if name in homes:
        return getattr(import_module(f".{homes[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
