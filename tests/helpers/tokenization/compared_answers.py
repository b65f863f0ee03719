"""Compare the results of two tokenizers, and check the version of the reference."""

import numpy as np
import torch
import transformers
from packaging.version import Version

LATER = Version(transformers.__version__) > Version("5.3.0")
"""The reference that is installed is later than the documented one (compared with 5.23.0)."""


def assert_same(mine, theirs, where=""):
    """The same types, dtypes, shapes and values, all the way down."""
    if hasattr(theirs, "data") and hasattr(theirs, "encodings"):
        assert list(mine) == list(theirs), where
        for name in theirs:
            assert_same(mine[name], theirs[name], f"{where}.{name}")
        return
    if isinstance(theirs, dict):  # for empty input the reference returns its argument
        mine = dict(mine)
    assert type(mine) is type(theirs) or (isinstance(mine, tuple) and isinstance(theirs, tuple)), (
        where
    )
    if isinstance(theirs, (torch.Tensor, np.ndarray)):
        assert mine.dtype == theirs.dtype, where
        assert mine.shape == theirs.shape, where
        assert (mine == theirs).all(), where
    elif isinstance(theirs, dict):
        assert list(mine) == list(theirs), where
        for name in theirs:
            assert_same(mine[name], theirs[name], f"{where}[{name!r}]")
    elif isinstance(theirs, (list, tuple)) and any(
        isinstance(each, (list, tuple, dict, np.ndarray)) for each in theirs
    ):
        assert len(mine) == len(theirs), where
        for index, (actual, expected) in enumerate(zip(mine, theirs, strict=True)):
            assert_same(actual, expected, f"{where}[{index}]")
    else:
        assert mine == theirs, where


def _holds_objects(encoded):
    columns = getattr(encoded, "data", {})
    return any(getattr(values, "dtype", None) == np.dtype(object) for values in columns.values())


def answer(call, *args, **kwargs):
    """Return the result or the error of a call; warnings are ignored."""
    try:
        return call(*args, **kwargs)
    except (ValueError, TypeError, OverflowError, NotImplementedError) as error:
        return error
    except BaseException as error:
        if "Panic" not in type(error).__name__ and type(error) is not Exception:
            raise
        return error


def assert_same_answer(mine, theirs, where=""):
    """Both fail, or both answer alike; returns whether they answered.

    Rows of different lengths are arrays of objects in the reference, and refused by ours.
    """
    if _holds_objects(theirs):
        assert isinstance(mine, ValueError), (where, mine, theirs)
        return False
    if isinstance(theirs, BaseException) or isinstance(mine, BaseException):
        assert isinstance(theirs, BaseException), (where, mine, theirs)
        assert isinstance(mine, BaseException), (where, mine, theirs)
        return False
    assert_same(mine, theirs, where)
    return True
