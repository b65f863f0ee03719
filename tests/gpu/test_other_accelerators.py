"""What is done for CUDA is done for Intel's GPUs and Apple's too, where it means any accelerator."""

from types import SimpleNamespace

import pytest
import torch
from tiny import arguments, tiny

from lightrainer import DataModule, Trainer


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_free_memory_empties_the_cache_of_each_accelerator(tmp_path, monkeypatch, kind):
    accelerator = Trainer(tiny(), arguments(tmp_path)).accelerator
    emptied = []
    owner = torch.backends.mps if kind == "mps" else getattr(torch, kind)
    monkeypatch.setattr(owner, "is_available", lambda: True)
    monkeypatch.setattr(getattr(torch, kind), "empty_cache", lambda: emptied.append(kind))
    accelerator.free_memory()
    assert emptied == [kind]


@pytest.mark.parametrize(("kind", "expected"), [("cpu", False), ("cuda", True), ("xpu", True), ("mps", False)])
def test_batches_of_a_data_module_are_page_locked_where_a_device_reads_such_memory(kind, expected):
    data = DataModule([1, 2])
    data.trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(kind)))
    assert data._workers()["pin_memory"] is expected
