"""The order in which a device, which notes what it is asked, copies and computes."""

from types import SimpleNamespace

import pytest
import torch

from lightrainer.lightning_modules.checkpoints import writing
from lightrainer.lightning_modules.checkpoints.writing import CheckpointFiles, Snapshot


@pytest.fixture
def notes(monkeypatch):
    """Notes of a device that copies every tensor."""
    noted: list[str] = []

    class Event:
        def record(self, stream):
            noted.append(f"event on {stream}")

        def synchronize(self):
            noted.append("host waits for the copies")

    module = SimpleNamespace(
        Event=Event, current_stream=lambda device: "the stream of the training"
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(writing, "is_copied_by_device", lambda tensor: True)
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda tensor, **options: empty_like(tensor))
    return noted


def test_snapshot_copies_on_the_stream_of_the_training(notes):
    """So no kernel that is queued later changes a weight before it is copied, and the host need
    not wait.
    """
    copies = Snapshot()
    copied = copies.of({"weight": torch.ones(3), "bias": torch.ones(2)})
    assert notes == ["event on the stream of the training"]
    copies.wait()
    assert notes[1:] == ["host waits for the copies"]
    assert copied["weight"].tolist() == [1, 1, 1]


def test_snapshot_waits_for_no_copies_of_an_earlier_checkpoint(notes):
    copies = Snapshot()
    copies.of(torch.ones(3))
    copies.begin()
    copies.wait()
    assert "host waits for the copies" not in notes


def test_files_are_written_after_the_copies_are_there(notes, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "save_torch", lambda *_: notes.append("written"))
    files = CheckpointFiles(Snapshot())
    files.write_tensors({"a": torch.ones(2)}, tmp_path / "a.pt")
    assert "host waits for the copies" not in notes
    files.write_copies()
    assert notes.index("host waits for the copies") < notes.index("written")
