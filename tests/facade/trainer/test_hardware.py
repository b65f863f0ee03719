"""Arguments about the machine: their effect where the hardware is there, a word where it is not."""

import pytest
import torch
from lightning.fabric.accelerators.cuda import _check_cuda_matmul_precision

from helpers.trainer.tiny_trainings import make_trainer, tiny
from lightrainer import TrainingArguments
from lightrainer.facade.trainer.steps import empty_cache_if_due


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu"])
def test_device_cache_is_emptied_every_n_steps(tmp_path, monkeypatch, kind):
    trainer = make_trainer(tmp_path, torch_empty_cache_steps=3)
    emptied = []
    monkeypatch.setattr(
        getattr(torch, kind), "empty_cache", lambda: emptied.append(trainer.state.global_step)
    )
    cleared = []
    monkeypatch.setattr(
        getattr(torch, kind), "clear_graph_cache", lambda: cleared.append(1), raising=False
    )
    monkeypatch.setattr(TrainingArguments, "device", property(lambda self: torch.device(kind)))
    for step in range(7):
        trainer.state.global_step = step
        empty_cache_if_due(trainer.args, step)
    assert emptied == [0, 3, 6]
    assert len(cleared) == 3  # torch.mps alone has it


class TestOnAGpu:
    @pytest.mark.gpu
    def test_device_cache_is_emptied(self, tmp_path, monkeypatch):
        """Lightning empties it, too, before the first step and after the last one."""
        emptied = []
        monkeypatch.setattr(
            torch.cuda, "empty_cache", lambda: emptied.append(trainer.state.global_step)
        )
        trainer = make_trainer(tmp_path, use_cpu=False, torch_empty_cache_steps=2)
        trainer.train()
        assert emptied.count(0) > 1, "a step, and Lightning"
        assert [step for step in emptied if 0 < step < 4] == [2]

    @pytest.mark.gpu(needs="units for tf32")
    def test_tf32_rounds_products(self, tmp_path):
        """On and off; switched off they are float32's."""
        torch.manual_seed(1)
        left, right = torch.randn(64, 64), torch.randn(64, 64)
        exact, errors = left.double() @ right.double(), {}
        for tf32 in (True, False):
            TrainingArguments(output_dir=str(tmp_path), tf32=tf32)
            product = (left.cuda() @ right.cuda()).cpu().double()
            errors[tf32] = (product - exact).abs().max().item()
        assert errors[True] > 10 * errors[False]

    @pytest.mark.gpu
    @pytest.mark.skipif(
        not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="needs torch 2.9 or later"
    )
    def test_tf32_may_be_set_in_the_newer_way(self, tmp_path):
        """Lightning asks for it in the older way, which is an error then."""
        _check_cuda_matmul_precision.cache_clear()
        trainer = make_trainer(tmp_path, use_cpu=False)
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        try:
            trainer.train()
            trainer.evaluate()
        finally:
            torch.backends.cuda.matmul.fp32_precision = "none"
        assert trainer.model.first.weight.device.type == "cuda"

    @pytest.mark.gpu(needs="separate memory")
    def test_memory_of_the_gpu_is_reported(self, tmp_path):
        trainer = make_trainer(tmp_path, use_cpu=False, skip_memory_metrics=False)
        assert trainer.train().metrics["train_mem_gpu_peaked_delta"] >= 0


@pytest.mark.parametrize(
    ("device_map", "is_parallel"),
    [
        ({"a": 0, "b": 1}, True),
        ({"a": 0, "b": "cpu"}, True),
        ({"": "cuda:0"}, True),
        ({"": "cpu"}, False),
        ({"a": "cpu", "b": "disk"}, False),
        ({"": torch.device("cpu")}, False),
        ({}, False),
    ],
    ids=str,
)
def test_model_that_is_placed_on_other_devices_is_parallel(tmp_path, device_map, is_parallel):
    """As in transformers, offloaded layers do not count. A process with such a model has a GPU."""
    model = tiny()
    model.hf_device_map = device_map
    trainer = make_trainer(tmp_path, model=model)
    assert trainer.is_model_parallel is is_parallel
    assert trainer.place_model_on_device is not is_parallel
    assert trainer.args.n_gpu == int(is_parallel)
