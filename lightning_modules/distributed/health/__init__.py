"""What processes that train together know of each other: failures, losses, settings.

Usable from any training loop over `torch.distributed`; in a single process all of it does nothing.
"""

from .comparing import require_same
from .errors import OtherProcessError
from .failure_monitor import Board, current_board, leave_board
from .guard import company, meeting
from .orphans import end_with_parent

__all__ = [
    "Board",
    "OtherProcessError",
    "company",
    "current_board",
    "end_with_parent",
    "leave_board",
    "meeting",
    "require_same",
]
