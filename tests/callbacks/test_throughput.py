"""Speed, and the share of the device in use."""

import pytest

from helpers.callbacks.small_training import (
    LENGTH,
    LanguageModel,
    make_trainer,
    sentences,
    train_small,
    training_logs,
)
from lightrainer import TrainerCallback
from lightrainer.callbacks import ThroughputCallback

COUNTED = {"include_num_input_tokens_seen": True}


class Estimated(LanguageModel):
    """Has the method by which the Trainer estimates operations."""

    def num_parameters(self, exclude_embeddings=False):
        return 1000


class Clock(TrainerCallback):
    """Its time advances in steps and, much more, in evaluations."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("lightrainer.callbacks.throughput.time.perf_counter", lambda: self.now)

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
    trainer = make_trainer(tmp_path, [hears], model=Estimated(), **COUNTED)
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
    logs = training_logs(
        train_small(tmp_path, callbacks, eval_strategy="steps", eval_steps=4, **COUNTED)
    )
    assert logs
    for entry in logs:
        assert entry["steps_per_second"] == pytest.approx(50, rel=1e-3)
        assert entry["samples_per_second"] == pytest.approx(8 * entry["steps_per_second"], rel=1e-3)
        assert entry["tokens_per_second"] == pytest.approx(
            LENGTH * entry["samples_per_second"], rel=1e-3
        )


def test_throughput_operations_are_those_that_the_trainer_estimates(tmp_path):
    """Six for each token and weight; also with accumulation and a shorter last step."""
    for changes in ({}, {"gradient_accumulation_steps": 3, "logging_steps": 1}):
        trainer = train_small(
            tmp_path, [ThroughputCallback()], model=Estimated(), **COUNTED, **changes
        )
        assert training_logs(trainer)
        for entry in training_logs(trainer):
            expected = 6000 * entry["tokens_per_second"]
            assert entry["flops_per_second"] == pytest.approx(expected, rel=1e-3)


def test_throughput_without_an_estimate_has_no_operations(tmp_path):
    for entry in training_logs(train_small(tmp_path, [ThroughputCallback(peak_flops=1e12)])):
        assert "samples_per_second" in entry
        assert not {"flops_per_second", "mfu", "tokens_per_second"} & entry.keys()


def test_samples_of_a_short_last_batch_are_not_counted_twice(tmp_path):
    """10 samples in batches of 8: an epoch of two steps has 10, not 16."""
    trainer = train_small(tmp_path, [ThroughputCallback()], data=sentences(10), num_train_epochs=4)
    for entry in training_logs(trainer)[1:]:
        assert entry["samples_per_second"] == pytest.approx(5 * entry["steps_per_second"], rel=1e-3)


def test_throughput_utilization_is_a_fraction_of_the_peak(tmp_path):
    callback = ThroughputCallback(peak_flops=1e12)
    for entry in training_logs(train_small(tmp_path, [callback], model=Estimated())):
        assert entry["mfu"] == pytest.approx(entry["flops_per_second"] / 1e12, rel=1e-4)
    no_peak = train_small(tmp_path, [ThroughputCallback()], model=Estimated())
    assert all("flops_per_second" in entry for entry in training_logs(no_peak))
    assert not any("mfu" in entry for entry in training_logs(no_peak))


def test_throughput_peak_must_be_above_zero():
    with pytest.raises(ValueError, match="peak_flops is 0"):
        ThroughputCallback(peak_flops=0)
