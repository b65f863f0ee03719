"""Files that a thread writes are those that would have been written at once; errors come back."""

import json
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from lightrainer.lightning_modules.checkpoints import BackgroundWriter, WriteLater, WriteNow, load_torch
from lightrainer.lightning_modules.checkpoints.writing import Snapshot, snapshot, warn_if_disk_full


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("flags", torch.ones(2, dtype=torch.bfloat16))


class SavesItself(Tied):
    """Takes no state dict, so that nothing but the live model can be saved."""

    def save_pretrained(self, folder):
        torch.save(self.state_dict(), Path(folder, "pytorch_model.bin"))


def nothing() -> None:
    pass


def fail() -> None:
    raise OSError("the disk is gone")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def stored(content: bytes) -> tuple[dict[str, object], bytes]:
    """Header and tensors of a safetensors file; the order within the header is not the same each time."""
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def write_both(model: nn.Module, folder: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """What is written now, and what is written later of the same, the model having changed meanwhile."""
    optimizer = torch.optim.AdamW(model.parameters())
    model.head(model.embedding(torch.tensor([1]))).sum().backward()
    optimizer.step()
    background = BackgroundWriter()
    for name, writer in {"now": WriteNow(), "later": WriteLater(background)}.items():
        (folder / name).mkdir()
        writer.weights(model, folder / name)
        writer.tensors(optimizer.state_dict(), folder / name / "optimizer.pt")
        if name == "later":
            optimizer.step()
        writer.finish(nothing, fail)
    background.wait()
    return contents(folder / "now"), contents(folder / "later")


def test_the_same_files_come_later(tmp_path):
    now, later = write_both(Tied(), tmp_path)
    assert now.keys() == later.keys() == {"model.safetensors", "optimizer.pt"}
    assert stored(now["model.safetensors"]) == stored(later["model.safetensors"])
    left, right = (load_torch(tmp_path / name / "optimizer.pt") for name in ("now", "later"))
    assert left["param_groups"] == right["param_groups"]
    assert all(torch.equal(left["state"][0][key], right["state"][0][key]) for key in left["state"][0])


def test_a_model_that_takes_no_copies_is_saved_at_once(tmp_path):
    now, later = write_both(SavesItself(), tmp_path)
    assert now["pytorch_model.bin"] == later["pytorch_model.bin"]


def test_pretrained_models_of_the_reference_save_their_copies(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=11, n_embd=4, n_layer=1, n_head=1, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    background = BackgroundWriter()
    for name, writer in {"now": WriteNow(), "later": WriteLater(background)}.items():
        writer.weights(model, tmp_path / name)
        if name == "later":
            with torch.no_grad():
                model.transformer.wte.weight.zero_()
        writer.finish(nothing, fail)
    background.wait()
    now, later = contents(tmp_path / "now"), contents(tmp_path / "later")
    assert now.keys() == later.keys() >= {"config.json", "model.safetensors"}
    assert stored(now["model.safetensors"]) == stored(later["model.safetensors"])


def test_a_copy_keeps_structure_and_sharing():
    shared = torch.arange(4.0)
    made = snapshot({"a": shared, "b": [shared, (shared[:2], "text")], "c": torch.empty(0), 3: None})
    shared.zero_()
    assert made["a"] is made["b"][0]
    assert made["a"].tolist() == [0, 1, 2, 3]
    assert made["b"][1][0].tolist() == [0, 1]
    assert made["b"][1][1] == "text"
    assert made["c"].shape == (0,)
    assert made[3] is None


def test_a_state_dict_stays_one():
    state = nn.BatchNorm1d(2).state_dict()
    assert snapshot(state)._metadata == state._metadata
    assert list(snapshot(state)) == list(state)


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
    copies.release()
    assert copies.of(values)[0].data_ptr() != first[0].data_ptr()


def test_at_most_one_is_on_its_way():
    background, gate, order = BackgroundWriter(), threading.Event(), []
    background.start([gate.wait, lambda: order.append("first")], nothing)
    opener = threading.Timer(0.05, gate.set)
    opener.start()
    background.start([lambda: order.append("second")], nothing)
    background.wait()
    assert order == ["first", "second"]


def test_an_error_is_raised_once_by_the_next_wait():
    background, undone = BackgroundWriter(), []
    background.start([fail, lambda: undone.append("went on")], lambda: undone.append("undone"))
    with pytest.raises(OSError, match="the disk is gone"):
        background.wait()
    background.wait()
    assert undone == ["undone"]


def test_an_error_is_raised_by_the_next_start():
    background, started = BackgroundWriter(), []
    background.start([fail], nothing)
    with pytest.raises(OSError, match="the disk is gone"):
        background.start([lambda: started.append(1)], nothing)
    assert started == []


def test_only_a_full_disk_is_forgiven(tmp_path, caplog):
    warn_if_disk_full(OSError(28, "No space left on device"), tmp_path)
    assert "older checkpoints are untouched" in caplog.text
    with pytest.raises(OSError, match="is gone"):
        warn_if_disk_full(OSError("the disk is gone"), tmp_path)
