"""The order in which a device, which notes what it is asked, copies and computes."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from lightrainer.lightning_modules.checkpoints import writing
from lightrainer.lightning_modules.checkpoints.writing import CheckpointFiles, DeviceCopies, Snapshot


class Stream:
    def __init__(self, name, notes):
        self.name, self.notes = name, notes

    def wait_stream(self, other):
        self.notes.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event):
        self.notes.append(f"{self.name} waits for the copies")

    def record_event(self):
        self.notes.append(f"event on {self.name}")
        return SimpleNamespace(synchronize=lambda: self.notes.append("host waits for the copies"))


class OnDevice(torch.Tensor):
    """Says that it is on a GPU."""

    def record_stream(self, stream):
        stream.notes.append(f"memory is kept for {stream.name}")


@pytest.fixture
def notes(monkeypatch):
    noted = []
    training, copies = Stream("training", noted), Stream("copies", noted)

    @contextlib.contextmanager
    def on(stream):
        noted.append(f"on {stream.name}")
        yield

    module = SimpleNamespace(Stream=lambda device: copies, current_stream=lambda device: training, stream=on)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    return noted


def test_training_waits_on_the_device_and_the_writer_on_the_host(notes):
    device, weight, memory = DeviceCopies(torch.device("cpu")), torch.ones(3).as_subclass(OnDevice), torch.zeros(3)
    device.copy(weight, memory)
    device.end()
    assert notes == [
        "copies waits for training",
        "on copies",
        "memory is kept for copies",
        "event on copies",
        "training waits for the copies",
    ]
    assert memory.tolist() == [1, 1, 1]
    device.wait()
    assert notes[5:] == ["host waits for the copies"]


def test_files_are_written_after_the_copies_are_there(notes, tmp_path, monkeypatch):
    copies = Snapshot()
    copies._devices[torch.device("cpu")] = DeviceCopies(torch.device("cpu"))
    monkeypatch.setattr(writing, "save_torch", lambda *_: notes.append("written"))
    files = CheckpointFiles(copies)
    files.tensors({"a": torch.ones(2)}, tmp_path / "a.pt")
    assert "host waits for the copies" not in notes
    files.run()
    assert notes.index("host waits for the copies") < notes.index("written")
