"""Streams that know how far they have been read."""

from __future__ import annotations

from typing import Any


def is_resumable(dataset: Any) -> bool:
    """Whether a dataset can tell its position, and go on from there to the very same samples.

    It has `state_dict` and `load_state_dict`. A `datasets.IterableDataset` that shuffles has them too, but fills its
    buffer anew: it has to be read from the start to be the same.
    """
    if not (hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")):
        return False
    stage = getattr(dataset, "_ex_iterable", None)
    while stage is not None:
        if "Shuffled" in type(stage).__name__:
            return False
        stage = getattr(stage, "ex_iterable", None)
    return True
