"""Compare the settings of all processes, and name the process that failed first in the errors of
the others.

Works with any training loop over `torch.distributed`, and does nothing in a single process. Imports
`common`.
"""

from .consistency import require_same
from .first_error import (
    FULL_TRACEBACK,
    OtherProcessError,
    has_failed,
    name_first_error,
    one_line,
    report_uncaught_errors,
)

__all__ = [
    "FULL_TRACEBACK",
    "OtherProcessError",
    "has_failed",
    "name_first_error",
    "one_line",
    "report_uncaught_errors",
    "require_same",
]
