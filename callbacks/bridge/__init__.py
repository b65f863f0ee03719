"""TrainerCallbacks in a plain `lightning.Trainer(callbacks=[...])`, without the facade.

Importing it loads nothing but the standard library; Lightning is imported when `LightningBridge` is first asked for.
"""

from typing import TYPE_CHECKING, Any

from .arguments import BridgeArguments
from .hooks import HOOKS, Carrier, hook_table

if TYPE_CHECKING:
    from .adapter import LightningBridge

__all__ = ["HOOKS", "BridgeArguments", "Carrier", "LightningBridge", "hook_table"]


def __getattr__(name: str) -> Any:
    if name == "LightningBridge":
        from .adapter import LightningBridge

        return LightningBridge
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
