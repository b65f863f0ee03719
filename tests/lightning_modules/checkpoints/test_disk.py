"""Room for a checkpoint is looked for before it is begun."""

import errno

import pytest
import torch

from lightrainer.lightning_modules.checkpoints import (
    DiskFullError,
    disk,
    free_space,
    require_space,
    tensor_bytes,
)


def test_memory_that_is_shared_counts_once():
    shared = torch.zeros(10)
    assert (
        tensor_bytes({"a": shared, "b": [shared, (torch.zeros(3, dtype=torch.int64), None, 7)]})
        == 40 + 24
    )


def test_free_space_of_a_folder_to_come(tmp_path):
    assert free_space(tmp_path / "not" / "yet") == pytest.approx(free_space(tmp_path), rel=0.1)
    assert not (tmp_path / "not").exists()


def test_disk_room_is_made_from_the_oldest(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"0" * 1000)
    monkeypatch.setattr(disk, "free_space", lambda folder: 1 << 20)
    doomed = require_space(tmp_path, 1500, spare=[tmp_path / name for name in "abc"])
    assert [path.name for path in doomed] == ["a", "b"]
    assert (tmp_path / "a").exists()


def test_too_little_is_an_error_that_says_how_much(tmp_path):
    with pytest.raises(DiskFullError, match=r"needs about .* free.*save_total_limit") as caught:
        require_space(tmp_path, 1 << 60)
    assert caught.value.errno == errno.ENOSPC
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "x"), True),
        (OSError(errno.EACCES, "x"), False),
        (RuntimeError("I/O error: No space left on device (os error 28)"), True),
        (ValueError("x"), False),
    ],
)
def test_words_for_a_full_disk(error, full):
    assert disk.is_disk_full(error) is full


def test_disk_error_cause_counts():
    outer = RuntimeError("zip writer failed")
    outer.__cause__ = OSError(errno.ENOSPC, "x")
    assert disk.is_disk_full(outer)
    assert not disk.is_disk_full(RuntimeError("zip writer failed"))
