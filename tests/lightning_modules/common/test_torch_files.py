"""Only tensors and plain values are unpickled, and errors name the file."""

import errno
import os
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from lightrainer.lightning_modules.checkpoints import load_torch, save_torch


def test_random_states_come_back_and_the_reference_reads_them(tmp_path: Path):
    from transformers.trainer_pt_utils import safe_globals

    states = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.get_rng_state(),
    }
    path = tmp_path / "rng_state.pth"
    save_torch(states, path)
    with safe_globals():
        by_reference = torch.load(path, weights_only=True)
    for loaded in (load_torch(path), by_reference):
        assert loaded["python"] == states["python"]
        assert torch.equal(loaded["cpu"], states["cpu"])
        np.random.set_state(loaded["numpy"])
        assert (np.random.get_state()[1] == states["numpy"][1]).all()


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int64", "uint32", "float16", "float32", "float64"]
)
def test_numpy_numbers_and_arrays_come_back(tmp_path: Path, dtype: str):
    """Learning-rate schedulers keep metrics as NumPy numbers."""
    save_torch(
        {"scalar": np.dtype(dtype).type(1), "array": np.ones((2, 3), dtype)}, tmp_path / "x.pt"
    )
    loaded = load_torch(tmp_path / "x.pt")
    assert loaded["scalar"] == 1
    assert loaded["array"].dtype == dtype
    assert (loaded["array"] == np.ones((2, 3), dtype)).all()


def test_numpy_1_names_are_known(tmp_path: Path):
    """A file written under NumPy 1 names the functions in `numpy.core`."""
    save_torch(np.arange(3), tmp_path / "x.pt")
    name = np.empty(0).__reduce__()[0].__module__.encode()

    other = (
        b"numpy.core.multiarray" if name != b"numpy.core.multiarray" else b"numpy._core.multiarray"
    )
    with zipfile.ZipFile(tmp_path / "x.pt") as old, zipfile.ZipFile(tmp_path / "y.pt", "w") as new:
        for entry in old.namelist():
            content = old.read(entry)
            if entry.endswith("data.pkl"):
                assert name in content
                content = content.replace(name, other)
            new.writestr(entry, content)
    assert load_torch(tmp_path / "y.pt").tolist() == [0, 1, 2]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("size", [10, 100_000])
def test_full_disk_is_an_error_that_names_the_file(size: int):
    with pytest.raises(OSError, match="No space left on device: '/dev/full'") as caught:
        save_torch(torch.randn(size), Path("/dev/full"))
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, -1])
def test_truncated_file_is_named(tmp_path: Path, keep: float):
    path = tmp_path / "optimizer.pt"
    save_torch({"x": torch.ones(1000)}, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(ValueError, match=r"optimizer\.pt"):
        load_torch(path)
