"""What processes that train together know of each other: failures, losses, settings.

Usable from any training loop over `torch.distributed`; in a single process all of it does nothing.
"""

from .comparing import require_same
from .errors import OtherProcessError
from .failure_monitor import FailureMonitor, current_monitor, leave_monitor
from .guard import company, meeting
from .orphans import end_with_parent

__all__ = [
    "FailureMonitor",
    "OtherProcessError",
    "company",
    "current_monitor",
    "end_with_parent",
    "leave_monitor",
    "meeting",
    "require_same",
]
