"""What processes that train together know of each other: failures, losses, settings.

Usable from any training loop over `torch.distributed`; in a single process all of it does nothing.
"""

from .board import Board, current_board, leave_board
from .company import company, meeting
from .comparing import require_same
from .errors import OtherProcessError
from .lonely import end_with_parent

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
