"""Name the process that failed, is gone or has other settings, in all processes.

Usable from any training loop over `torch.distributed`; in a single process all of it does nothing. Imports `common`.
"""

from .consistency import require_same
from .failure_monitor import FailureMonitor, OtherProcessError, current_monitor, leave_monitor
from .guard import company, meeting

__all__ = [
    "FailureMonitor",
    "OtherProcessError",
    "company",
    "current_monitor",
    "leave_monitor",
    "meeting",
    "require_same",
]
