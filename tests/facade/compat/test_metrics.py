"""What metrics are shown with, and warnings that were caught: as in the reference."""

import warnings

import pytest
from transformers import trainer_pt_utils

from lightrainer.facade.compat import metrics


@pytest.mark.parametrize("seconds", [0.0, 61.239, 3600 * 30 + 0.5])
def test_times(seconds):
    assert metrics._secs2timedelta(seconds) == trainer_pt_utils._secs2timedelta(seconds)


def test_warnings_that_were_caught():
    for here in (metrics, trainer_pt_utils):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn("one", UserWarning, stacklevel=1)
            warnings.warn("two", FutureWarning, stacklevel=1)
        with warnings.catch_warnings(record=True) as again:
            warnings.simplefilter("always")
            here.reissue_pt_warnings(caught)
            here.reissue_pt_warnings(caught[1:])
        assert [one.category for one in again] == [FutureWarning]
