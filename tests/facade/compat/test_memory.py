"""Batch sizes that fit, the memory of stages, and durations."""

import pytest
from transformers import trainer_pt_utils, trainer_utils

from lightrainer.facade.compat import memory


def test_a_batch_size_that_fits():
    """The sizes of the reference; errors of other kinds pass through."""
    tried = []

    def limited(batch_size):
        tried.append(batch_size)
        if batch_size > 3:
            raise RuntimeError("CUDA out of memory. Tried to allocate")

    for start in (7, 64, 1000):
        theirs = tried = []
        trainer_utils.find_executable_batch_size(limited, start, True)()
        ours = tried = []
        memory.find_executable_batch_size(limited, start, True)()
        assert ours == theirs
    assert ours[:3] == [1000, 900, 810]
    tried = []

    @memory.find_executable_batch_size(starting_batch_size=12, auto_find_batch_size=True)
    def train(batch_size, more):
        tried.append((batch_size, more))
        if batch_size > 4:
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        return batch_size

    assert train("x") == 4
    assert tried == [(size, "x") for size in (12, 10, 9, 8, 7, 6, 5, 4)]
    assert memory.find_executable_batch_size(lambda batch_size: batch_size, 7)() == 7

    @memory.find_executable_batch_size(starting_batch_size=2, auto_find_batch_size=True)
    def never(batch_size):
        raise RuntimeError("CUDA out of memory. Tried to allocate")

    with pytest.raises(RuntimeError, match="one sample"):
        never()
    with pytest.raises(ZeroDivisionError):
        memory.find_executable_batch_size(lambda batch_size: 1 / 0, 4, True)()


def test_the_memory_tracker_knows_its_stage_by_its_caller():
    class Host:
        def __init__(self, kind):
            self.tracker = kind()
            self.tracker.start()
            self.tracker.stop_and_update_metrics()

        def evaluate(self):
            self.tracker.start()
            found = {"a": 1}
            self.tracker.stop_and_update_metrics(found)
            return found

        def other(self):
            self.tracker.start()

    pytest.importorskip("psutil")
    ours, reference = Host(memory.TrainerMemoryTracker), Host(trainer_utils.TrainerMemoryTracker)
    assert ours.evaluate().keys() == reference.evaluate().keys()
    assert ours.evaluate().keys() == reference.evaluate().keys()
    for host in (ours, reference):
        with pytest.raises(ValueError, match="other"):
            host.other()
    skipped = memory.TrainerMemoryTracker(skip_memory_metrics=True)
    skipped.start()


@pytest.mark.parametrize("seconds", [0.0, 61.239, 3600 * 30 + 0.5])
def test_times(seconds):
    assert memory._secs2timedelta(seconds) == trainer_pt_utils._secs2timedelta(seconds)
