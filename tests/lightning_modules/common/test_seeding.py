"""Seeds and saved random states are the reference's, both ways."""

import logging
import os
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import Trainer, trainer_utils
from transformers.training_args import ParallelMode

from lightrainer.lightning_modules.common import seeding as ours
from lightrainer.lightning_modules.common.torch_files import save_torch

ALONE = SimpleNamespace(world_size=1, process_index=0, parallel_mode=ParallelMode.NOT_PARALLEL)
SECOND = SimpleNamespace(world_size=2, process_index=1, parallel_mode=ParallelMode.DISTRIBUTED)


@pytest.fixture(autouse=True)
def _leave_no_trace():
    """Give the other tests back their generators, settings and environment."""
    state = ours.capture_rng_state(False)
    environment = dict(os.environ)
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False
    os.environ.clear()
    os.environ.update(environment)
    ours.restore_rng_state(state, False)


def draw():
    return random.random(), np.random.rand(3).tolist(), torch.rand(3).tolist()


@pytest.mark.parametrize("draws", range(4))
def test_seeding_numpy_state_is_current_after_any_draws(draws):
    """Also where a draw takes the second of two normal numbers, which moves nothing else."""
    np.random.seed(draws)
    for _ in range(draws):
        ours.capture_host_rng()
        np.random.randn()
    state, expected = ours.capture_host_rng(), np.random.get_state()
    assert str(state["numpy"]) == str(expected)
    ours.restore_host_rng(state)
    assert str(ours.capture_host_rng()["numpy"]) == str(expected)


def test_seeding_numpy_state_with_a_spare_normal_number():
    """No word of the generator differs between the two states."""
    np.random.seed(0)
    np.random.randn()
    with_spare, expected = ours.capture_host_rng(), np.random.get_state()
    np.random.randn()
    without_spare = ours.capture_host_rng()
    ours.restore_host_rng(with_spare)
    assert str(ours.capture_host_rng()["numpy"]) == str(expected) != str(without_spare["numpy"])


def test_seeding_state_of_another_numpy_generator():
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        with pytest.warns(RuntimeWarning, match="MT19937"):
            assert ours.capture_host_rng()["numpy"]["bit_generator"] == "PCG64"
    finally:
        np.random.set_bit_generator(before)


def unsettle():
    """Put every generator somewhere else."""
    ours.set_seed(991)
    draw()


@pytest.mark.parametrize("seed", [0, 42, 2**32 - 1, np.int64(7)])
def test_seeds_equal_reference(seed):
    trainer_utils.set_seed(int(seed))
    expected = draw()
    unsettle()
    ours.set_seed(seed)
    assert draw() == expected
    assert draw() != expected  # negative control


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seed_out_of_range_changes_nothing(seed):
    state = random.getstate()
    with pytest.raises(ValueError, match=f"`seed` is {seed}"):
        ours.set_seed(seed)
    assert random.getstate() == state


@pytest.mark.parametrize("warn_only", [False, True])
def test_full_determinism_equals_reference(warn_only, monkeypatch):
    """Same draws, same torch settings, and the same environment but for the size of a workspace."""
    for name in ours.DETERMINISTIC_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    results, workspaces = [], []
    for enable in (trainer_utils.enable_full_determinism, ours.enable_full_determinism):
        before = dict(os.environ)
        enable(5, warn_only=warn_only)
        changed = dict(os.environ.items() - before.items())
        workspaces.append(changed.pop("CUBLAS_WORKSPACE_CONFIG"))
        settings = (
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.cudnn.deterministic,
        )
        settings += (
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.cudnn.benchmark,
        )
        results.append((draw(), changed, settings))
        os.environ.clear()
        os.environ.update(before)
        torch.use_deterministic_algorithms(False)
    assert results[0] == results[1]
    assert results[0][1]
    assert workspaces == [":16:8", ":4096:8"]


@pytest.mark.parametrize("rank", [0, 3])
def test_worker_seeds_equal_reference(rank):
    torch.manual_seed(123)
    trainer_utils.seed_worker(1, num_workers=2, rank=rank)
    expected = draw()
    unsettle()
    torch.manual_seed(123)
    ours.seed_worker(1, num_workers=2, rank=rank)
    assert draw() == expected


@pytest.mark.parametrize(("args", "name"), [(ALONE, "rng_state.pth"), (SECOND, "rng_state_1.pth")])
def test_seeding_states_are_exchanged_with_the_reference(tmp_path, args, name):
    read = {
        "theirs": lambda: Trainer._load_rng_state(SimpleNamespace(args=args), str(tmp_path)),
        "ours": lambda: ours.restore_rng_state(
            ours.load_rng_file(tmp_path / name), distributed=args is SECOND
        ),
    }
    write = {
        "ours": lambda: save_torch(ours.capture_rng_state(args is SECOND), tmp_path / name),
        "theirs": lambda: Trainer._save_rng_state(SimpleNamespace(args=args), str(tmp_path)),
    }
    for writer, reader in (("ours", "theirs"), ("theirs", "ours")):
        unsettle()
        write[writer]()
        expected = draw()
        ours.set_seed(1)
        assert draw() != expected
        read[reader]()
        assert draw() == expected


def test_gaussian_left_over_is_kept(tmp_path):
    """Numpy and Python keep every second normal number for the next call; that survives too."""
    np.random.seed(0)
    np.random.standard_normal()
    random.gauss(0, 1)
    save_torch(ours.capture_rng_state(False), tmp_path / "a.pth")
    expected = np.random.standard_normal(), random.gauss(0, 1)
    unsettle()
    ours.restore_rng_state(ours.load_rng_file(tmp_path / "a.pth"), distributed=False)
    assert (np.random.standard_normal(), random.gauss(0, 1)) == expected


@pytest.mark.parametrize("missing", ["python", "numpy", "cpu"])
def test_missing_generators_are_named(missing, caplog):
    """The others are restored."""
    state = ours.capture_rng_state(False)
    expected = dict(zip(["python", "numpy", "cpu"], draw(), strict=True))
    del state[missing], expected[missing]
    unsettle()
    with caplog.at_level(logging.WARNING):
        ours.restore_rng_state(state, False)
    assert [record.args[0] for record in caplog.records] == [missing]
    drawn = dict(zip(["python", "numpy", "cpu"], draw(), strict=True))
    assert {name: drawn[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [("python", (1, 2)), ("numpy", ("MT19937",)), ("cpu", torch.zeros(3)), ("cpu", None)],
)
def test_damaged_states_are_named(name, value):
    state = ours.capture_rng_state(False) | {name: value}
    with pytest.raises(ValueError, match=f"random number generator '{name}' cannot be set"):
        ours.restore_rng_state(state, False)


class FakeCuda:
    """Two devices whose states are kept in a list."""

    def __init__(self, monkeypatch):
        self.states = [torch.tensor([number], dtype=torch.uint8) for number in (1, 2)]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        for module in (torch.cuda, torch.cuda.random):
            monkeypatch.setattr(module, "get_rng_state", lambda: self.states[0])
            monkeypatch.setattr(module, "get_rng_state_all", lambda: list(self.states))
            monkeypatch.setattr(module, "set_rng_state", self.set_one)
            monkeypatch.setattr(module, "set_rng_state_all", self.set_all)

    def set_one(self, state):
        self.states[0] = state.clone()

    def set_all(self, states):
        for index, state in enumerate(states):
            self.states[index] = state.clone()


@pytest.mark.parametrize("args", [ALONE, SECOND], ids=["alone", "distributed"])
def test_cuda_states_have_the_form_of_the_reference(tmp_path, monkeypatch, args):
    """One tensor in one process, a list of all devices in several (the device itself is a
    stand-in).
    """
    FakeCuda(monkeypatch)
    Trainer._save_rng_state(SimpleNamespace(args=args), str(tmp_path))
    expected = ours.load_rng_file(next(tmp_path.iterdir()))["cuda"]
    state = ours.capture_rng_state(distributed=args is SECOND)
    assert type(state["cuda"]) is type(expected)
    assert [value.tolist() for value in state["cuda"]] == [value.tolist() for value in expected]


@pytest.mark.parametrize("distributed", [False, True])
def test_cuda_states_are_restored(monkeypatch, distributed):
    cuda = FakeCuda(monkeypatch)
    state = ours.capture_rng_state(distributed)
    cuda.states = [torch.tensor([9], dtype=torch.uint8)] * 2
    ours.restore_rng_state(state, distributed)
    assert [value.item() for value in cuda.states] == ([1, 2] if distributed else [1, 9])
