"""Hashed files are those that torch and safetensors write, and the manifest does not read them again."""

import errno
import json
import os
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lightrainer.lightning_modules.checkpoints import WrittenFiles, hashed_files, manifest, problems, save_weights
from lightrainer.lightning_modules.checkpoints.hashed_files import Pickled, write_safetensors, write_torch
from lightrainer.lightning_modules.checkpoints.writing import Snapshot


def test_states_are_those_of_torch(tmp_path):
    """Mapped or read, with the sums in the file."""
    written, state = WrittenFiles(), {"a": torch.randn(3000), "b": [torch.arange(7), "text"], "c": torch.empty(0)}
    write_torch(state, tmp_path / "optimizer.pt", written)
    for mapped in (False, True):
        found = torch.load(tmp_path / "optimizer.pt", weights_only=True, mmap=mapped)
        assert torch.equal(found["a"], state["a"])
        assert torch.equal(found["b"][0], state["b"][0])
        assert found["b"][1] == "text"
        assert found["c"].shape == (0,)
    assert zipfile.ZipFile(tmp_path / "optimizer.pt").testzip() is None
    path = tmp_path / "optimizer.pt"
    assert written.checksum(path, path.stat()) == manifest.checksum(path)


def test_tensors_keep_what_torch_keeps_of_them(tmp_path):
    """Strides, one memory of two names, parts of a memory, types; what only torch can write is left to it."""
    shared = torch.arange(6.0)
    state: dict[str, Any] = {"twice": [shared, shared], "part": shared[2:4], "turned": torch.rand(2, 3).t()}
    state |= {str(dtype): torch.ones(3).to(dtype) for dtype in hashed_files._DTYPES}
    state |= {"ordered": OrderedDict(a=OrderedDict()), "weight": nn.Parameter(torch.ones(2)), "numbers": np.arange(3)}
    for more, by_torch in (({}, False), ({"narrow": torch.ones(2).to(torch.float8_e5m2)}, True)):
        for pickled in (Pickled({**state, **more}), Snapshot().pickled({**state, **more})):
            assert (pickled.values is not None) is by_torch
            write_torch(pickled, tmp_path / "file", WrittenFiles())
            found = torch.load(tmp_path / "file", weights_only=False)
            assert found.keys() == {**state, **more}.keys()
            assert found["twice"][0].data_ptr() == found["twice"][1].data_ptr()
            assert found["turned"].stride() == state["turned"].stride()
            for name, value in {**state, **more, "twice": shared}.items():
                one = found["twice"][1] if name == "twice" else found[name]
                same = torch.equal(one, value) if isinstance(value, torch.Tensor) else str(one) == str(value)
                assert same, name
                assert by_torch or type(one) is type(value)


def test_a_gradient_that_is_wanted_and_attributes_stay(tmp_path):
    wanted, marked = torch.ones(2, requires_grad=True), torch.zeros(3)
    marked.note = "mine"
    write_torch({"wanted": wanted, "marked": marked}, tmp_path / "states.pt", WrittenFiles())
    found = torch.load(tmp_path / "states.pt", weights_only=True)
    assert found["wanted"].requires_grad
    assert found["marked"].note == "mine"


def test_weights_are_those_of_safetensors(tmp_path):
    """Of every type that is written here, of no elements and of one; and of a type that is left to the library."""
    kinds = hashed_files._DTYPES
    tensors = {f"{kind}-ä": torch.arange(-3, 600).to(kind).reshape(9, 67) for kind in kinds}
    tensors |= {"empty": torch.empty(0, 4), "scalar": torch.tensor(1.5, dtype=torch.float64)}
    for name, more in {"here": {}, "library": {"narrow": torch.ones(2).to(torch.float8_e5m2)}}.items():
        path, written = tmp_path / name, WrittenFiles()
        write_safetensors({**tensors, **more}, path, {"format": "pt", "tied": "x"}, written)
        save_file({**tensors, **more}, tmp_path / "expected", {"format": "pt", "tied": "x"})
        assert header(path) == header(tmp_path / "expected")
        found, expected = load_file(path), load_file(tmp_path / "expected")
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert found[key].dtype == value.dtype
            assert torch.equal(found[key], value)
        assert written.checksum(path, path.stat()) == (None if more else manifest.checksum(path))


def header(path: Path) -> dict[str, object]:
    """Return dtype and shape of each tensor; their order is up to the writer."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    assert size % 8 == 0
    told = json.loads(content[8 : 8 + size])
    return {key: value if key == "__metadata__" else (value["dtype"], value["shape"]) for key, value in told.items()}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no such device")
@pytest.mark.parametrize("size", [10, 100_000])
def test_a_disk_that_refuses_is_named_whatever_torch_makes_of_it(size):
    with pytest.raises(OSError, match="No space left on device: '/dev/full'") as caught:
        write_torch(torch.randn(size), Path("/dev/full"), WrittenFiles())
    assert caught.value.errno == errno.ENOSPC


def test_the_manifest_reads_only_files_that_were_not_written_here_or_changed_since(tmp_path, monkeypatch):
    read, inner = [], manifest.checksum
    monkeypatch.setattr(manifest, "checksum", lambda path: (read.append(path.name), inner(path))[1])
    written = WrittenFiles()
    save_weights(nn.Linear(40, 40), tmp_path, written=written)
    for name in ("optimizer.pt", "changed.pt"):
        write_torch({"x": torch.ones(50)}, tmp_path / name, written)
    (tmp_path / "changed.pt").write_bytes((tmp_path / "changed.pt").read_bytes().replace(b"\x80\x3f", b"\x00\x40", 1))
    os.utime(tmp_path / "changed.pt", ns=(1, 1))  # even where the clock of the disk is slow
    (tmp_path / "trainer_state.json").write_text('{"global_step": 1}')
    manifest.write_manifest(tmp_path, written)
    assert sorted(read) == ["changed.pt", "trainer_state.json"]
    monkeypatch.undo()
    assert problems(tmp_path) == []
