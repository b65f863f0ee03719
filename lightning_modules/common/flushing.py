"""Flush files to the disk, on file systems that support it."""

import errno
import os

_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""Errors of file systems that cannot flush, or only files. ENOTSUP is not EOPNOTSUPP everywhere."""


def flush(descriptor: int) -> None:
    """Flush an open file, or the entries of an open folder, to the disk.

    Does nothing where the file system does not support it, as some network and user-space file
    systems: the files are there, and a power failure may damage them.

    Raises:
        OSError: the disk reports an error.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
