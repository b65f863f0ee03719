"""What is done for CUDA is done for Intel's GPUs and Apple's too, where it means any
accelerator.
"""

from types import SimpleNamespace

import pytest
import torch

from helpers.trainer.tiny_trainings import arguments, tiny
from lightrainer import DataModule, Trainer
from lightrainer.facade.distributed import process
from lightrainer.lightning_modules.common import seeding


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_free_memory_empties_the_cache_of_each_accelerator(tmp_path, monkeypatch, kind):
    accelerator = Trainer(tiny(), arguments(tmp_path)).accelerator
    emptied = []
    owner = torch.backends.mps if kind == "mps" else getattr(torch, kind)
    monkeypatch.setattr(owner, "is_available", lambda: True)
    monkeypatch.setattr(getattr(torch, kind), "empty_cache", lambda: emptied.append(kind))
    accelerator.free_memory()
    assert emptied == [kind]


def test_generator_of_an_apple_gpu_comes_back(monkeypatch, caplog):
    drawn = [torch.tensor([1, 2], dtype=torch.uint8)]
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: drawn[0].clone())
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda state: drawn.insert(0, state))
    monkeypatch.setattr(torch.mps, "manual_seed", lambda seed: None)
    state = seeding.capture_rng_state(distributed=False)
    drawn.insert(0, torch.tensor([3, 4], dtype=torch.uint8))
    seeding.restore_rng_state(state, distributed=False)
    assert drawn[0].tolist() == [1, 2]

    del state["mps"]
    seeding.restore_rng_state(state, distributed=False)
    assert "'mps' is not restored" in caplog.text


def test_other_accelerators_unused_intel_gpu_is_named(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    process._warn_once.cache_clear()
    assert process._single_device(use_cpu=False).type == "cpu"
    assert "Intel GPU" in caplog.text


@pytest.mark.parametrize(
    ("kind", "expected"), [("cpu", False), ("cuda", True), ("xpu", True), ("mps", False)]
)
def test_batches_of_a_data_module_are_page_locked_where_a_device_reads_such_memory(kind, expected):
    data = DataModule([1, 2])
    data.trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(kind)))
    assert data._worker_options()["pin_memory"] is expected
