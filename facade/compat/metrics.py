"""Presentation of durations, and warnings that were caught."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Sequence
from typing import Any


def _secs2timedelta(secs: float) -> str:
    """As `transformers.trainer_pt_utils._secs2timedelta`: h:mm:ss and hundredths."""
    whole = int(secs)
    return f"{datetime.timedelta(seconds=whole)}.{int(abs(secs - whole) * 100):02d}"


def reissue_pt_warnings(caught_warnings: Sequence[Any]) -> None:
    """As `transformers.trainer_pt_utils.reissue_pt_warnings`: all but UserWarnings, where there are two or more."""
    for caught in caught_warnings if len(caught_warnings) > 1 else ():
        if caught.category is not UserWarning:
            warnings.warn(caught.message, caught.category, stacklevel=2)
