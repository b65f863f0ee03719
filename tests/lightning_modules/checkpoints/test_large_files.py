"""Files that are written in blocks past the cache are those that the libraries write, and known without being read."""

import errno
import importlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lightrainer.lightning_modules.checkpoints import (
    WrittenFiles,
    block_file,
    large_files,
    manifest,
    problems,
    save_weights,
)
from lightrainer.lightning_modules.checkpoints.block_file import BlockFile
from lightrainer.lightning_modules.checkpoints.large_files import write_safetensors, write_torch

fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None
BLOCK = 4096


@pytest.fixture(autouse=True)
def _even_the_smallest(monkeypatch):
    """Files of any size are large, and blocks are small."""
    monkeypatch.setattr(large_files, "LARGE", 0)
    monkeypatch.setattr(block_file, "_BLOCK", BLOCK)


@pytest.fixture(params=["past the cache", "through the cache", "refused in the middle"])
def way(request, monkeypatch):
    """What a file system can do; one that takes a file and then refuses its blocks is there too."""
    if request.param == "through the cache":
        monkeypatch.setattr(block_file, "_PAST_THE_CACHE", 0)
    elif block_file._PAST_THE_CACHE == 0:
        pytest.skip("this system has no such way")
    elif request.param == "refused in the middle":
        inner = block_file._open
        monkeypatch.setattr(block_file, "_open", lambda name: (Refusing(inner(name)[0]), True))


class Refusing:
    """A file that takes half of the first block, and then nothing until it is told to go through the cache."""

    def __init__(self, file):
        self.file, self.begun = file, False

    def write(self, block):
        if self.begun and fcntl.fcntl(self.file, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        count = len(block) if self.begun else len(block) // 2
        self.begun = True
        return self.file.write(block[:count])

    def fileno(self):
        return self.file.fileno()

    def close(self):
        self.file.close()


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK, 5 * BLOCK + 512])
def test_all_bytes_arrive_in_their_order(tmp_path, way, size):
    """However they are cut; and the checksum is that of the file."""
    content = os.urandom(size)
    with BlockFile(tmp_path / "file") as file:
        for start in range(0, size, 1000):
            assert file.write(content[start : start + 1000]) == len(content[start : start + 1000])
        file.write(memoryview(b""))
    assert (tmp_path / "file").read_bytes() == content
    assert file.checksum == manifest.checksum(tmp_path / "file")


@pytest.mark.parametrize("slow_after", [0, 1, 3], ids="slow after {} pieces".format)
def test_a_slow_cache_is_left_where_a_block_of_the_disk_begins(tmp_path, monkeypatch, slow_after):
    """Pieces go through it as they come; from then on whole blocks, each at a place where a disk takes it."""
    if block_file._PAST_THE_CACHE == 0:
        pytest.skip("this system has no such way")
    monkeypatch.setattr(block_file, "_TELLING", 1)
    ways, content, put = [], os.urandom(9 * BLOCK + 77), block_file._Descriptor.put

    def noted(self, block):
        begin = self._file.tell()
        put(self, block)
        ways.append((self._is_past, begin, len(block)))
        self._seconds[False] = float(len(ways) >= slow_after)

    monkeypatch.setattr(block_file._Descriptor, "put", noted)
    with BlockFile(tmp_path / "file", past_the_cache=False) as file:
        for start in range(0, len(content), 1000):
            file.write(content[start : start + 1000])
    assert (tmp_path / "file").read_bytes() == content
    assert file.checksum == manifest.checksum(tmp_path / "file")
    pieces = max(slow_after, 1)
    assert ways[:pieces] == [(False, 1000 * number, 1000) for number in range(pieces)]
    assert ways[pieces] == (False, 1000 * pieces, BLOCK - 1000 * pieces)
    assert ways[pieces + 1 : -1] == [(True, BLOCK * number, BLOCK) for number in range(1, 9)]
    assert ways[-1] == (False, 9 * BLOCK, 77)


def test_a_file_that_is_there_is_replaced(tmp_path, way):
    (tmp_path / "file").write_bytes(bytes(9 * BLOCK))
    with BlockFile(tmp_path / "file") as file:
        file.write(b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_states_are_those_of_torch(tmp_path, way):
    """Also for whoever maps them, and for those that check the sums in the file."""
    written, state = WrittenFiles(), {"a": torch.randn(3000), "b": [torch.arange(7), "text"], "c": torch.empty(0)}
    write_torch(state, tmp_path / "optimizer.pt", written)
    for mapped in (False, True):
        found = torch.load(tmp_path / "optimizer.pt", weights_only=True, mmap=mapped)
        assert torch.equal(found["a"], state["a"])
        assert torch.equal(found["b"][0], state["b"][0])
        assert found["b"][1] == "text"
        assert found["c"].shape == (0,)
    assert zipfile.ZipFile(tmp_path / "optimizer.pt").testzip() is None
    assert written.checksum(tmp_path / "optimizer.pt") == manifest.checksum(tmp_path / "optimizer.pt")


def test_weights_are_those_of_safetensors(tmp_path, way):
    """Of every type that is written here, of no elements and of one; and of a type that is left to the library."""
    kinds = [getattr(torch, name) for name in large_files._KINDS]
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
        assert written.checksum(path) == (None if more else manifest.checksum(path))


def header(path: Path) -> dict[str, object]:
    """What it says of each tensor; in which order they lie is up to who writes."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    assert size % 8 == 0
    told = json.loads(content[8 : 8 + size])
    return {key: value if key == "__metadata__" else (value["dtype"], value["shape"]) for key, value in told.items()}


def test_with_one_type_the_file_is_that_of_the_library(tmp_path):
    """Byte for byte."""
    tensors = {name: torch.randn(30, 40) for name in ("b", "a", "c.weight")}
    write_safetensors(tensors, tmp_path / "here", {"format": "pt"}, WrittenFiles())
    save_file(tensors, tmp_path / "library", {"format": "pt"})
    assert (tmp_path / "here").read_bytes() == (tmp_path / "library").read_bytes()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no such device")
@pytest.mark.parametrize("size", [10, 100_000])
def test_a_disk_that_refuses_is_named_whatever_torch_makes_of_it(size):
    with pytest.raises(OSError, match="No space left on device: '/dev/full'") as caught:
        write_torch(torch.randn(size), Path("/dev/full"), WrittenFiles())
    assert caught.value.errno == errno.ENOSPC


def test_an_error_of_who_writes_goes_on(tmp_path):
    class Odd:
        def __reduce__(self):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        write_torch([torch.ones(3 * BLOCK), Odd()], tmp_path / "file", WrittenFiles())


def test_the_manifest_reads_none_of_what_was_written_here(tmp_path, monkeypatch):
    """But it does read what somebody has changed since then, and what others have written."""
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
