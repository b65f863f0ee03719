"""Writes that fail in the middle of a file, as on a full disk."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def writes_fail_after(size: int) -> Iterator[pytest.ExceptionInfo[OSError]]:
    """Let each write beyond this size of a file fail in the block, which has to raise; give the
    error.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            yield raised
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
