"""Report in all processes which one failed, is gone or has other settings.

Usable from any training loop over `torch.distributed`; does nothing in a single process. Imports `common`.
"""

from .consistency import require_same
from .failure_monitor import FailureMonitor, OtherProcessError, current_monitor, leave_monitor
from .guard import monitor_peers, rendezvous

__all__ = [
    "FailureMonitor",
    "OtherProcessError",
    "current_monitor",
    "leave_monitor",
    "monitor_peers",
    "rendezvous",
    "require_same",
]
