"""Files that a thread writes are those that would have been written at once; errors come back."""

import json
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import PyTorchModelHubMixin
from safetensors.torch import load_file
from torch import nn

from lightrainer.lightning_modules.checkpoints import (
    BackgroundWriter,
    CheckpointFiles,
    load_torch,
    writing,
)
from lightrainer.lightning_modules.checkpoints.writing import Snapshot


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("flags", torch.ones(2, dtype=torch.bfloat16))


class SavesItself(Tied, PyTorchModelHubMixin):
    """Takes no state dict, so that nothing but the live model can be saved."""

    def save_pretrained(self, folder):
        torch.save(self.state_dict(), Path(folder, "pytorch_model.bin"))


def nothing() -> None:
    pass


def start(
    background: BackgroundWriter, files: CheckpointFiles, *jobs: Callable[[], Any], undo=nothing
) -> None:
    """Let the jobs be the commit of a checkpoint of 100 bytes."""
    background.start(files, 100, commit=lambda: [job() for job in jobs] and None, undo=undo)


def begin(background: BackgroundWriter, *jobs: Callable[[], Any], undo=nothing, limit=0) -> None:
    background.make_room(100, limit)
    start(background, CheckpointFiles(background.copies()), *jobs, undo=undo)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def stored(content: bytes) -> tuple[dict[str, object], bytes]:
    """Header and tensors of a safetensors file; the order within the header is not the same each
    time.
    """
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def write_both(model: nn.Module, folder: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Write a model at once and later, after it has changed; return the files of both."""
    optimizer = torch.optim.AdamW(model.parameters())
    model.head(model.embedding(torch.tensor([1]))).sum().backward()
    optimizer.step()
    background = BackgroundWriter()
    later = CheckpointFiles(background.copies())
    for name, files in {"now": CheckpointFiles(), "later": later}.items():
        (folder / name).mkdir()
        files.write_weights(model, folder / name)
        files.write_tensors(optimizer.state_dict(), folder / name / "optimizer.pt")
    optimizer.step()
    start(background, later, nothing)
    background.make_room(0, -1)
    return contents(folder / "now"), contents(folder / "later")


def test_writing_in_the_background_gives_the_same_files(tmp_path):
    now, later = write_both(Tied(), tmp_path)
    assert now.keys() == later.keys() == {"model.safetensors", "optimizer.pt"}
    assert stored(now["model.safetensors"]) == stored(later["model.safetensors"])
    left, right = (load_torch(tmp_path / name / "optimizer.pt") for name in ("now", "later"))
    assert left["param_groups"] == right["param_groups"]
    assert all(
        torch.equal(left["state"][0][key], right["state"][0][key]) for key in left["state"][0]
    )


def test_equal_states_give_equal_files(tmp_path):
    """Tied weights have names in the header, which the library writes in any order."""
    model = Tied()
    written = []
    for number in range(8):
        files = CheckpointFiles()
        folder = tmp_path / str(number)
        folder.mkdir()
        files.write_weights(model, folder)
        files.write_tensors({"step": torch.arange(5.0)}, folder / "optimizer.pt")
        written.append(contents(folder))
    assert all(other == written[0] for other in written)
    assert load_file(tmp_path / "0" / "model.safetensors").keys() == {"embedding.weight", "flags"}


def test_writing_without_copies_saves_at_once(tmp_path):
    now, later = write_both(SavesItself(), tmp_path)
    assert now["pytorch_model.bin"] == later["pytorch_model.bin"]


def test_copies_of_freed_tensors_are_not_reused():
    """The allocator gives their address to the next."""
    copies = Snapshot()
    assert [copies.of(torch.full((64,), float(number)))[0].item() for number in range(9)] == list(
        range(9)
    )


def test_memory_is_used_again():
    copies, values = Snapshot(), [torch.ones(3), torch.ones(2, 2)]
    first = copies.of(values)
    copies.begin()
    values[0].fill_(7)
    second = copies.of(values)
    assert [copy.data_ptr() for copy in first] == [copy.data_ptr() for copy in second]
    assert second[0].tolist() == [7, 7, 7]
    copies.begin()
    assert copies.of([torch.zeros(5), torch.zeros(3)])[0].shape == (5,)


def test_snapshot_copies_all_that_may_change():
    """As `torch.save` keeps them: one memory of two names, strides, kinds of dicts, tensors
    inside of other objects.
    """
    shared, turned, inside = (
        torch.zeros(3),
        torch.rand(2, 3).t(),
        SimpleNamespace(tensor=torch.zeros(2)),
    )
    counts = defaultdict(list, a=[1])
    values = {
        "twice": [shared, shared],
        "turned": turned,
        "numbers": np.zeros(2),
        "counts": counts,
        "inside": inside,
    }
    copied = Snapshot().of(values)
    shared.fill_(1)
    values["numbers"][0] = 1
    counts["b"].append(2)
    inside.tensor.fill_(1)
    assert copied["twice"][0].tolist() == [*copied["numbers"].tolist(), 0] == [0, 0, 0]
    assert copied["twice"][0].data_ptr() == copied["twice"][1].data_ptr()
    assert copied["turned"].stride() == turned.stride()
    assert copied["counts"] == {"a": [1]}
    assert type(copied["counts"]) is defaultdict
    assert copied["inside"].tensor.tolist() == [0, 0]


@pytest.mark.parametrize(("limit", "waited"), [(250, False), (150, True)])
def test_room_in_memory_is_waited_for(limit, waited):
    background, gate, order = BackgroundWriter(), threading.Event(), []
    begin(background, gate.wait, lambda: order.append("first"), limit=limit)
    opener = threading.Timer(0.1, gate.set)
    opener.start()
    begin(background, lambda: order.append("second"), limit=limit)
    assert (order[:1] == ["first"]) is waited
    background.make_room(0, -1)
    assert order == ["first", "second"]


@pytest.mark.parametrize(
    ("error", "lines"), [(OSError(5, "bad disk"), 1), (FileNotFoundError(), 0)]
)
def test_writing_logs_a_disk_that_refuses_to_flush(tmp_path, monkeypatch, caplog, error, lines):
    monkeypatch.setattr(writing, "sync_tree", lambda *_: (_ for _ in ()).throw(error))
    assert writing.try_to_flush(tmp_path) is False
    assert caplog.text.count("could not be flushed to the disk") == lines
