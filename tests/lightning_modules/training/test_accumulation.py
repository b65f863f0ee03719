"""Micro-batches are read a window at a time, from any position of an epoch on, and not a moment
too early.
"""

import itertools

import pytest

from lightrainer.lightning_modules.data.epoch_loader import EpochLoader
from lightrainer.lightning_modules.training.accumulation import WindowLoader


class Recorded:
    """A loader whose every move is written down; epoch `e` gives 10 * e, 10 * e + 1, ..."""

    def __init__(self, count):
        self.count = count
        self.events = []
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch
        self.events.append(f"epoch {epoch}")

    def __iter__(self):
        for index in range(self.count):
            self.events.append(index)
            yield 10 * self.epoch + index


def read(batches, count):
    window = list(itertools.islice(batches, count))
    return window, sum(window)


def make(loader, accumulation=3, sized=True, windows=None):
    """Windows over a loader; over a stream of unknown length if it is not `sized`."""
    needed = -(-loader.count // accumulation)
    sizes = {
        "batches_per_epoch": loader.count if sized else None,
        "windows_per_epoch": needed if windows is None else windows,
    }
    return WindowLoader(loader, accumulation=accumulation, read_window=read, **sizes)


@pytest.mark.parametrize("count", range(9))
@pytest.mark.parametrize("accumulation", range(1, 5))
def test_windows_hold_all_batches_in_order(count, accumulation):
    """All windows are full but the last."""
    windows = make(Recorded(count), accumulation)
    read_windows = list(windows)
    assert read_windows == [
        list(range(start, min(start + accumulation, count)))
        for start in range(0, count, accumulation)
    ]
    assert [window.items for window in read_windows] == [sum(window) for window in read_windows]
    assert len(windows) == len(read_windows)


@pytest.mark.parametrize(("total", "end"), [(7, (True, 1)), (8, (True, 0)), (None, (True, -1))])
def test_last_window_holds_the_end_of_its_loader(total, end):
    """Its remainder is the samples of the last round; streams in several processes have none."""
    loader = EpochLoader(range(total or 7), total=total, samples_per_round=2, batch_size=2)
    windows = WindowLoader(
        loader,
        accumulation=2,
        batches_per_epoch=4,
        windows_per_epoch=2,
        read_window=lambda batches, count: (list(itertools.islice(batches, count)), None),
    )
    if total is None:
        windows.align_ranks = iter
    assert [window.loader_end for window in windows] == [(False, -1), end]


def test_window_loader_reads_nothing_before_the_first_window():
    """Also the epoch is not set: making an iterator must not move a generator."""
    loader, moments = Recorded(6), []
    windows = make(loader)
    windows.start_at(1, 0, on_positioned=lambda: moments.append(list(loader.events)))
    iterators = [iter(windows), iter(windows)]
    assert (loader.events, moments) == ([], [])
    assert next(iterators[1]) == [10, 11, 12]
    assert loader.events == ["epoch 1", 0, 1, 2], "and no further than the window"


def test_position_is_reached_after_the_first_window_in_mid_epoch():
    """There the reference restores its generators: the first window is read before that, the
    step comes after.
    """
    loader, moments = Recorded(9), []
    windows = make(loader)
    windows.start_at(
        0, 1, on_positioned=lambda: moments.append((list(loader.events), windows.windows_done))
    )
    iterator = iter(windows)
    assert moments == []
    assert next(iterator) == [3, 4, 5]
    assert moments == [(["epoch 0", 0, 1, 2, 3, 4, 5], 1)]
    list(iterator)
    windows.end_epoch()
    list(windows)
    assert len(moments) == 1


@pytest.mark.parametrize("count", [6, 7, 2, 0])
def test_windows_of_a_stream_end_with_a_shorter_one(count):
    windows = make(Recorded(count), sized=False, windows=100)
    lengths = [len(window) for window in windows]
    assert lengths == [3] * (count // 3) + [count % 3] * (count % 3 > 0)
    assert windows.windows_done == len(lengths)


def test_windows_of_a_loader_that_gives_less_than_its_length():
    windows = make(Recorded(7))
    windows.loader.count = 5
    assert list(windows) == [[0, 1, 2], [3, 4]]


def test_stop_ends_the_epoch_after_the_current_window():
    windows, batches = make(Recorded(12)), []
    for window in windows:
        batches.append(list(window))
        if len(batches) == 2:
            windows.stop()
    assert batches == [[0, 1, 2], [3, 4, 5]]
    assert windows.loader.events[-1] == 5, "nothing more was read"
    windows.end_epoch()
    assert len(list(windows)) == 4, "the next epoch is not stopped"


def test_window_loader_ignores_the_state_of_another_loader(caplog):
    """The loader was replaced in the meantime: the position is counted, and a warning says so."""
    for state in ({"handed_out": 3}, {"at": 3}):
        windows = make(Recorded(10))
        caplog.clear()
        windows.start_at(0, 1, loader_state=state)
        assert "whose order Recorded cannot repeat. Its first 3 batches" in caplog.text
        assert list(windows) == [[3, 4, 5], [6, 7, 8], [9]]

        # No order is lost between two epochs.
        caplog.clear()
        windows.start_at(1, 0, loader_state=state)
        assert not caplog.text
