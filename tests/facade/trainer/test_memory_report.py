"""The memory report: what a stage left allocated, and how far beyond that it went."""

import threading
import time

import numpy as np
import pytest

from lightrainer.facade.trainer.memory_report import MemoryTracker

MEGABYTES = 1 << 20
BIG = 96


@pytest.fixture
def tracker():
    pytest.importorskip("psutil")
    return MemoryTracker(skip=False)


@pytest.fixture
def watchers():
    """The threads that measure, but for those that were there before."""
    before = set(threading.enumerate())
    return lambda: [thread for thread in threading.enumerate() if thread not in before]


def allocate():
    """Memory that is really there: each page is written to."""
    return np.ones(BIG * MEGABYTES, dtype=np.uint8)


def report(tracker, stage):
    metrics = {}
    tracker.stop(stage, metrics)
    return metrics


def test_kept_memory_is_the_delta(tracker):
    tracker.start("train")
    kept = allocate()
    found = report(tracker, "train")
    assert set(found) == {"train_mem_cpu_alloc_delta", "train_mem_cpu_peaked_delta"}
    assert 0.9 * BIG < found["train_mem_cpu_alloc_delta"] / MEGABYTES < 1.5 * BIG
    assert found["train_mem_cpu_peaked_delta"] < 0.2 * BIG * MEGABYTES
    assert kept.sum() == BIG * MEGABYTES


def test_released_memory_is_the_peak(tracker, watchers):
    tracker.start("eval")
    (watch,) = watchers()
    begin, end = watch._peak, time.monotonic() + 60
    kept = allocate()
    while watch._peak < begin + 0.9 * BIG * MEGABYTES and time.monotonic() < end:
        time.sleep(0.001)  # it looks now and then
    del kept
    found = report(tracker, "eval")
    assert found["eval_mem_cpu_peaked_delta"] > 0.8 * BIG * MEGABYTES
    assert found["eval_mem_cpu_alloc_delta"] < 0.2 * BIG * MEGABYTES
