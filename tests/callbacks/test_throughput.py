"""Speed, and the share of the device in use."""

import logging

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from helpers.callbacks.small_training import (
    FLOPS_PER_TOKEN,
    LENGTH,
    LanguageModel,
    make_trainer,
    sentences,
    trained,
    training_logs,
)
from lightrainer import TrainerCallback
from lightrainer.callbacks import MemoryCallback, ThroughputCallback
from lightrainer.callbacks._flops import flop_counter, peak_flops


class Clock(TrainerCallback):
    """Its time goes on in steps and, much more, in evaluations."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(
            "lightrainer.callbacks._speed_meter.time.perf_counter", lambda: self.now
        )

    def on_step_end(self, args, state, control, **kwargs):
        self.now += 0.02

    def on_prediction_step(self, args, state, control, **kwargs):
        self.now += 0.2


class Hears(TrainerCallback):
    """Notes the logs as those see them who come later, or earlier."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(dict(logs))


def test_speeds_are_in_the_history_and_in_the_logs_of_callbacks_that_were_there_before(
    tmp_path, capsys
):
    hears = Hears()
    trainer = make_trainer(tmp_path, [hears])
    trainer.add_callback(ThroughputCallback(peak_flops=1e15))
    trainer.train()
    names = {
        "samples_per_second",
        "steps_per_second",
        "tokens_per_second",
        "flops_per_second",
        "mfu",
    }
    history, heard = training_logs(trainer), [logs for logs in hears.logs if "loss" in logs]
    assert len(history) == len(heard) == 8
    for entry, logs in zip(history, heard, strict=True):
        assert names <= entry.keys()
        assert names <= logs.keys()
        assert entry == {**logs, "step": entry["step"]}
    assert "tokens_per_second" in capsys.readouterr().out
    assert not names & trainer.state.log_history[-1].keys()  # the summary of the run


def test_throughput_speeds_agree_with_the_clock(tmp_path, monkeypatch):
    """20 ms a step; evaluations take far longer, and do not count."""
    callbacks = [Clock(monkeypatch), ThroughputCallback()]
    logs = training_logs(trained(tmp_path, callbacks, eval_strategy="steps", eval_steps=4))
    assert logs
    for entry in logs:
        assert entry["steps_per_second"] == pytest.approx(50, rel=1e-3)
        assert entry["samples_per_second"] == pytest.approx(8 * entry["steps_per_second"], rel=1e-3)
        assert entry["tokens_per_second"] == pytest.approx(
            LENGTH * entry["samples_per_second"], rel=1e-3
        )


def test_operations_are_those_that_the_formula_says(tmp_path):
    """Six for each token and weight of a matrix; also with accumulation and a shorter last step."""
    for changes in ({}, {"gradient_accumulation_steps": 3, "logging_steps": 1}):
        for entry in training_logs(trained(tmp_path, [ThroughputCallback()], **changes)):
            if "flops_per_second" in entry:
                expected = FLOPS_PER_TOKEN * entry["tokens_per_second"]
                assert entry["flops_per_second"] == pytest.approx(expected, rel=2e-3)


def test_samples_of_a_short_last_batch_are_not_counted_twice(tmp_path):
    """10 samples in batches of 8: an epoch of two steps has 10, not 16."""
    trainer = trained(tmp_path, [ThroughputCallback()], data=sentences(10), num_train_epochs=4)
    for entry in training_logs(trainer)[1:]:
        assert entry["samples_per_second"] == pytest.approx(5 * entry["steps_per_second"], rel=1e-3)


def test_attention_on_the_cpu_is_counted_too():
    query = torch.randn(2, 4, 16, 8, requires_grad=True)
    with flop_counter() as counter:
        torch.nn.functional.scaled_dot_product_attention(query, query, query).sum().backward()
    one = 2 * 2 * 4 * 16 * 16 * 8
    # the backward pass computes the scores once more
    assert counter.get_total_flops() == 2 * one + 5 * one


def test_throughput_failed_step_is_not_watched_further(tmp_path):
    """Else all that comes after it in the process would be slow."""

    class Fails(LanguageModel):
        def forward(self, input_ids, labels=None):
            raise RuntimeError("out of order")

    before = _get_current_dispatch_mode_stack()
    with pytest.raises(RuntimeError, match="out of order"):
        trained(tmp_path, [ThroughputCallback()], model=Fails())
    assert _get_current_dispatch_mode_stack() == before


def test_throughput_utilization_is_at_most_one(tmp_path, caplog):
    """A peak that the training exceeds is wrong: that is said once, and no share is logged."""
    with caplog.at_level(logging.WARNING):
        logs = training_logs(trained(tmp_path, [ThroughputCallback(peak_flops=1.0)]))
    assert not any("mfu" in entry for entry in logs)
    assert all("flops_per_second" in entry for entry in logs)
    assert caplog.text.count("mfu is not logged") == 1
    assert "Set peak_flops of ThroughputCallback, which is 1.0" in caplog.text


def test_throughput_utilization_uses_the_peak_passed_in(tmp_path):
    """A CPU has no known one."""
    for entry in training_logs(trained(tmp_path, [ThroughputCallback(peak_flops=1e12)])):
        assert entry["mfu"] == pytest.approx(entry["flops_per_second"] / 1e12, rel=1e-4)
        assert 0 < entry["mfu"] <= 1
    assert not any(
        "mfu" in entry for entry in training_logs(trained(tmp_path, [ThroughputCallback()]))
    )


def test_peaks_are_found_by_the_names_that_drivers_give():
    known = {"H200": 989.4, "H100 PCIe": 756, "L40S": 362, "L4": 121, "GB200": 2500, "A1000": None}
    for name, expected in known.items():
        assert peak_flops(f"NVIDIA {name}", "bfloat16") == (expected and expected * 1e12)
    assert peak_flops("NVIDIA H100 80GB HBM3", "float32", tf32=True) == 494.7e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "float32", tf32=False) == 19.5e12


@pytest.mark.gpu(needs="memory of its own, and a peak that is known")
def test_throughput_gpu_peak_is_known_and_not_exceeded(tmp_path):
    callbacks = [ThroughputCallback(), MemoryCallback()]
    for entry in training_logs(trained(tmp_path, callbacks, use_cpu=False, bf16=True)):
        assert 0 < entry["device_memory_peak_gib"] < 10
        if peak_flops(torch.cuda.get_device_name(), "bfloat16") is not None:
            assert 0 < entry["mfu"] <= 1


def test_operations_can_be_given_or_be_the_models_own_estimate(tmp_path):
    class Estimates(LanguageModel):
        def num_parameters(self, exclude_embeddings=False):
            return 1000

    for entry in training_logs(trained(tmp_path, [ThroughputCallback(flops=7e6)])):
        assert entry["flops_per_second"] == pytest.approx(
            7e6 * entry["samples_per_second"], rel=1e-3
        )
    for entry in training_logs(
        trained(tmp_path, [ThroughputCallback(flops="model")], model=Estimates())
    ):
        assert entry["flops_per_second"] == pytest.approx(
            6000 * entry["tokens_per_second"], rel=1e-3
        )
    for flops in (None, "model"):  # this model has no estimate
        assert not any(
            "flops_per_second" in e
            for e in training_logs(trained(tmp_path, [ThroughputCallback(flops)]))
        )
