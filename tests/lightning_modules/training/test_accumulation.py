"""Micro-batches are read a window at a time, from any position of an epoch on, and not a moment too early."""

import itertools

import pytest
import torch

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


class Skipping(Recorded):
    """One that can skip by itself."""

    def __init__(self, count):
        super().__init__(count)
        self.skipped = 0

    def skip(self, batches):
        self.skipped = batches
        self.events.append(f"skip {batches}")

    def __iter__(self):
        skipped, self.skipped = self.skipped, 0
        return itertools.islice(itertools.count(10 * self.epoch), skipped, self.count)


def read(batches, count):
    window = list(itertools.islice(batches, count))
    return window, sum(window)


def make(loader, accumulation=3, sized=True, windows=None):
    """Windows over a loader; over a stream of unknown length if it is not `sized`."""
    needed = -(-loader.count // accumulation)
    return WindowLoader(
        loader,
        accumulation=accumulation,
        batches=loader.count if sized else None,
        windows=needed if windows is None else windows,
        read=read,
    )


@pytest.mark.parametrize("count", range(9))
@pytest.mark.parametrize("accumulation", range(1, 5))
def test_windows_hold_all_batches_in_order(count, accumulation):
    """All windows are full but the last, which takes an optimizer step too."""
    windows = make(Recorded(count), accumulation)
    seen = list(windows)
    assert seen == [list(range(start, min(start + accumulation, count))) for start in range(0, count, accumulation)]
    assert all(window.steps for window in seen)
    assert [window.items for window in seen] == [sum(window) for window in seen]
    assert len(windows) == len(seen)


def test_nothing_is_read_before_the_first_window_is_asked_for():
    """Also the epoch is not set: making an iterator must not move a generator."""
    loader, moments = Recorded(6), []
    windows = make(loader)
    windows.start_at(1, 0, on_positioned=lambda: moments.append(list(loader.events)))
    iterators = [iter(windows), iter(windows)]
    assert (loader.events, moments) == ([], [])
    assert next(iterators[1]) == [10, 11, 12]
    assert loader.events == ["epoch 1", 0, 1, 2], "and no further than the window"


@pytest.mark.parametrize("kind", [Recorded, Skipping])
@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("done", range(5))
def test_start_in_the_middle_gives_the_rest(kind, sized, done):
    """The windows from there on are those of an uninterrupted epoch, and the next epoch is whole."""
    whole = make(kind(10), sized=sized)
    whole.start_at(2, 0)
    expected = list(whole)
    windows = make(kind(10), sized=sized)
    windows.start_at(2, done)
    assert list(windows) == expected[done:]
    windows.end_epoch()
    assert (windows.epoch, windows.done) == (3, 0)
    assert list(windows) == [[30, 31, 32], [33, 34, 35], [36, 37, 38], [39]]


def test_a_loader_that_can_skip_is_asked_to():
    """The epoch comes first, and a start at the beginning skips nothing."""
    windows = make(Skipping(10))
    windows.start_at(1, 2)
    list(windows)
    windows.end_epoch()
    list(windows)
    assert windows.loader.events == ["epoch 1", "skip 6", "epoch 2"]


def test_position_is_reached_after_the_first_window_in_mid_epoch():
    """There the reference restores its generators: the first window is read before that, the step comes after."""
    loader, moments = Recorded(9), []
    windows = make(loader)
    windows.start_at(0, 1, on_positioned=lambda: moments.append((list(loader.events), windows.done)))
    iterator = iter(windows)
    assert moments == []
    assert next(iterator) == [3, 4, 5]
    assert moments == [(["epoch 0", 0, 1, 2, 3, 4, 5], 1)]
    list(iterator)
    windows.end_epoch()
    list(windows)
    assert len(moments) == 1


def test_position_after_the_last_window_is_reached_before_the_events_at_the_end_of_the_epoch():
    loader, moments = Recorded(6), []
    windows = make(loader)
    windows.start_at(0, 2, on_positioned=lambda: moments.append(windows.epoch))
    assert list(windows) == []
    assert moments == [0]
    windows.end_epoch()
    assert list(windows) == [[10, 11, 12], [13, 14, 15]]
    assert moments == [0]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (6, [([0, 1, 2], True), ([3, 4, 5], True)]),
        (7, [([0, 1, 2], True), ([3, 4, 5], True), ([6], False)]),
        (2, [([0, 1], False)]),
        (0, []),
    ],
)
def test_stream_that_ends_in_mid_window_takes_no_step(count, expected):
    windows = make(Recorded(count), sized=False, windows=100)
    assert [(list(window), window.steps) for window in windows] == expected
    assert windows.done == len(expected)


def test_loader_that_gives_less_than_it_said_takes_no_step_with_a_part():
    windows = make(Recorded(7))
    windows.loader.count = 5
    assert [(list(window), window.steps) for window in windows] == [([0, 1, 2], True), ([3, 4], False)]


def test_stop_ends_the_epoch_after_the_current_window():
    windows, seen = make(Recorded(12)), []
    for window in windows:
        seen.append(list(window))
        if len(seen) == 2:
            windows.stop()
    assert seen == [[0, 1, 2], [3, 4, 5]]
    assert windows.loader.events[-1] == 5, "nothing more was read"
    windows.end_epoch()
    assert len(list(windows)) == 4, "the next epoch is not stopped"


@pytest.mark.parametrize("kind", [Recorded, Skipping])
@pytest.mark.parametrize("taken", range(5))
def test_state_goes_on_with_the_next_window(kind, taken):
    """A round trip at any point of epoch 1, into fresh windows: together they see what one run sees."""
    windows = make(kind(10))
    windows.start_at(1, 0)
    seen = list(itertools.islice(windows, taken))
    state = windows.state_dict()
    assert (state["epoch"], state["done"]) == (1, taken)
    fresh = make(kind(10))
    fresh.load_state_dict(state)
    assert (fresh.epoch, fresh.done) == (1, taken)
    uninterrupted = make(kind(10))
    uninterrupted.start_at(1, 0)
    assert seen + list(fresh) == list(uninterrupted)


class Shuffled:
    """A foreign loader without state, which draws its order from torch's global generator."""

    def __iter__(self):
        return iter(torch.randperm(10).tolist())


class LikeTorchdata(Shuffled):
    """One with a state; it notices the end of an iteration only when it is asked for one batch too many."""

    def __init__(self):
        self.order: list[int] = []
        self.at = 0
        self.loaded = False

    def __iter__(self):
        if not self.loaded:
            self.order, self.at = torch.randperm(10).tolist(), 0
        self.loaded = False
        while self.at < 10:
            self.at += 1
            yield self.order[self.at - 1]

    def state_dict(self):
        return {"order": self.order, "at": self.at}

    def load_state_dict(self, state):
        self.order, self.at, self.loaded = list(state["order"]), state["at"], True


def windows_over(loader):
    return WindowLoader(loader, accumulation=3, batches=10, windows=4, read=read)


def epochs_of(windows, count):
    """The windows of some epochs; each draws a number, as a training step would."""
    seen = []
    for _ in range(count):
        for window in windows:
            seen.append((list(window), float(torch.rand(()))))
        windows.end_epoch()
    return seen


@pytest.mark.parametrize("kind", [Shuffled, LikeTorchdata])
@pytest.mark.parametrize("done", [1, 3, 4])
def test_loaders_of_others_go_on_as_well(kind, done):
    """In mid-epoch and at its end, with the generator where it was."""
    torch.manual_seed(1)
    expected = epochs_of(windows_over(kind()), 2)
    torch.manual_seed(1)
    first = windows_over(kind())
    seen = [(list(window), float(torch.rand(()))) for window in itertools.islice(first, done)]
    if done == 4:
        first.end_epoch()
    state, rng = first.state_dict(), torch.get_rng_state()
    torch.manual_seed(99)
    fresh = windows_over(kind())
    moments = []

    def restore():
        moments.append(len(seen))
        torch.set_rng_state(rng)

    fresh.start_at(state["epoch"], state["done"], restore, state["loader"])
    assert seen + epochs_of(fresh, 1 if done == 4 else 2) == expected
    assert len(moments) == 1


def test_a_state_of_another_kind_of_loader_is_not_used():
    """The loader was replaced in the meantime: the position is counted."""
    for state in ({"handed_out": 3}, {"at": 3}):
        windows = windows_over(list(range(10)))
        windows.start_at(0, 1, loader_state=state)
        assert list(windows) == [[3, 4, 5], [6, 7, 8], [9]]


def test_an_epoch_that_is_stopped_is_cut_short():
    """Unless there was no more to read."""
    windows = make(Recorded(6))
    seen = []
    for window in windows:
        assert not windows.is_cut_short
        seen += window
        windows.stop()
    assert (seen, windows.done, windows.is_cut_short, windows.is_at_end) == ([0, 1, 2], 1, True, False)
    windows = make(Recorded(6))
    for _ in windows:
        if windows.done == 2:
            windows.stop()
    assert (windows.is_cut_short, windows.is_at_end) == (False, True)
    stream = make(Recorded(4), sized=False, windows=9)
    for _ in stream:
        if stream.done == 2:
            stream.stop()
    assert (stream.is_cut_short, stream.exhausted, stream.is_at_end) == (False, True, False)
