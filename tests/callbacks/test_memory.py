"""Memory in the logs."""

import psutil
import pytest
import torch

from helpers.callbacks.small_training import train_small, training_logs
from lightrainer.callbacks import MemoryCallback, memory


def test_memory_of_the_process_is_in_each_log(tmp_path):
    trainer = train_small(tmp_path, [MemoryCallback()])
    now = psutil.Process().memory_info().rss / 2**30
    for entry in training_logs(trainer):
        assert entry["host_memory_gib"] == pytest.approx(now, rel=0.3)
        assert ("device_memory_peak_gib" in entry) == torch.cuda.is_initialized()
    assert "host_memory_gib" not in trainer.state.log_history[-1]


def test_linux_tells_without_psutil(monkeypatch):
    expected = psutil.Process().memory_info().rss
    monkeypatch.setattr(memory, "is_installed", lambda module: False)
    assert memory.host_memory() == pytest.approx(expected, rel=0.1)


@pytest.mark.gpu(needs="separate memory")
def test_memory_gpu_peak_is_logged(tmp_path):
    for entry in training_logs(train_small(tmp_path, [MemoryCallback()], use_cpu=False, bf16=True)):
        assert 0 < entry["device_memory_peak_gib"] < 10
