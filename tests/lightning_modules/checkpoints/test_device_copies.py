"""The order in which a device that records its calls copies and computes."""

from types import SimpleNamespace

import pytest
import torch

from lightrainer.lightning_modules.checkpoints import writing
from lightrainer.lightning_modules.checkpoints.writing import CheckpointFiles, Snapshot


@pytest.fixture
def notes(monkeypatch):
    """Notes of a device that copies every tensor."""
    noted: list[str] = []
    module = SimpleNamespace(synchronize=lambda device: noted.append("host waits for the copies"))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(writing, "PINNED_MEMORY_DEVICES", ("cpu",))
    copied = torch.Tensor.to

    def to(tensor, device, *, non_blocking, copy):
        noted.append(f"copy, {non_blocking=}")
        return copied(tensor, device, copy=copy)

    monkeypatch.setattr(torch.Tensor, "to", to)
    return noted


def test_snapshot_lets_the_device_copy_while_the_host_continues(notes):
    copies = Snapshot()
    copied = copies.of({"weight": torch.ones(3), "bias": torch.ones(2)})
    assert notes == ["copy, non_blocking=True"] * 2
    copies.wait()
    assert notes[2:] == ["host waits for the copies"]
    assert copied["weight"].tolist() == [1, 1, 1]


def test_snapshot_waits_for_no_copies_of_an_earlier_checkpoint(notes):
    copies = Snapshot()
    copies.of(torch.ones(3))
    copies.begin()
    copies.wait()
    assert "host waits for the copies" not in notes


def test_files_are_written_after_device_copies_finish(notes, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "save_torch", lambda *_: notes.append("written"))
    files = CheckpointFiles(Snapshot())
    files.write_tensors({"a": torch.ones(2)}, tmp_path / "a.pt")
    assert "host waits for the copies" not in notes
    files.write_copies()
    assert notes.index("host waits for the copies") < notes.index("written")
