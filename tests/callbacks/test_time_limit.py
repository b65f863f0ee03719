"""Stopping when the time is up."""

import logging
from datetime import timedelta

import pytest
import torch

from helpers.callbacks.small_training import (
    make_trainer,
    same_bits,
    train_small,
    training_logs,
    weights,
)
from lightrainer import TrainerCallback
from lightrainer.callbacks import TimeLimitCallback


def test_time_limit_accepts_seconds_and_timedeltas():
    """Others are refused."""
    assert TimeLimitCallback(7200).limit == TimeLimitCallback(timedelta(hours=2)).limit == 7200
    for limit in (0, -1, float("nan"), timedelta(0), "2h", None):
        with pytest.raises(ValueError, match="timedelta"):
            TimeLimitCallback(limit)


class Clock(TrainerCallback):
    """Lets ten minutes pass in each step, by its own clock."""

    def __init__(self, monkeypatch):
        self.now = 1e6
        monkeypatch.setattr("lightrainer.callbacks.time_limit.time.monotonic", lambda: self.now)

    def on_step_begin(self, args, state, control, **kwargs):
        self.now += 600


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def history(trainer):
    clocks = ("runtime", "per_second")
    return [{k: v for k, v in e.items() if not k.endswith(clocks)} for e in training_logs(trainer)]


def test_time_limit_stops_and_saves_and_a_resumed_training_ends_with_the_same_bits(
    tmp_path, clock, caplog
):
    """50 minutes are 5 steps."""
    limit = TimeLimitCallback(timedelta(minutes=50))
    with caplog.at_level(logging.WARNING):
        stopped = train_small(tmp_path, [clock, limit])
    assert stopped.state.global_step == 5
    assert limit.stopped
    assert "0:50:00 is reached: training stops at step 5 of 16" in caplog.text
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-5"]
    resumed, whole = train_small(tmp_path, resume=True), train_small(tmp_path / "whole")
    assert same_bits(weights(resumed), weights(whole))
    assert history(resumed) == history(whole)


class FailsOnce(TrainerCallback):
    """Raises an error at the end of the third step."""

    def __init__(self, error):
        self.error = error

    def on_step_end(self, args, state, control, **kwargs):
        error = self.error
        if state.global_step == 3 and error is not None:
            self.error = None
            raise error


def test_time_limit_is_that_of_all_attempts_of_a_training(tmp_path, clock):
    """The first attempt runs out of memory after 30 of the 50 minutes."""
    fails = FailsOnce(torch.OutOfMemoryError("out of memory"))
    limit = TimeLimitCallback(timedelta(minutes=50))
    stopped = train_small(tmp_path, [clock, limit, fails], auto_find_batch_size=True)
    assert fails.error is None
    assert stopped.state.global_step == 2


def test_time_limit_begins_again_after_an_error(tmp_path, clock):
    limit = TimeLimitCallback(timedelta(minutes=50))
    trainer = make_trainer(tmp_path, [clock, limit, FailsOnce(RuntimeError("step failed"))])
    with pytest.raises(RuntimeError, match="step failed"):
        trainer.train()
    trainer.train()
    assert trainer.state.global_step == 5


def test_time_limit_runs_due_work_at_the_end_of_an_epoch_first(tmp_path, clock):
    """Also where it is evaluated and saved by epochs; after a stop in mid-epoch nothing is."""
    changes = {"eval_strategy": "epoch", "save_strategy": "epoch", "logging_strategy": "epoch"}
    at_end = train_small(
        tmp_path / "end", [clock, TimeLimitCallback(timedelta(minutes=80))], **changes
    )
    assert [set(entry) & {"loss", "eval_loss"} for entry in at_end.state.log_history[:2]] == [
        {"loss"},
        {"eval_loss"},
    ]
    assert [path.name for path in (tmp_path / "end").glob("checkpoint-*")] == ["checkpoint-8"]
    inside = train_small(
        tmp_path / "inside", [clock, TimeLimitCallback(timedelta(minutes=30))], **changes
    )
    assert [set(entry) & {"loss", "eval_loss"} for entry in inside.state.log_history] == [set()]
    assert [path.name for path in (tmp_path / "inside").glob("checkpoint-*")] == ["checkpoint-3"]
    resumed = train_small(tmp_path / "inside", resume=True, **changes)
    assert same_bits(weights(resumed), weights(train_small(tmp_path / "whole", **changes)))


def test_time_limit_checkpoint_is_complete_under_any_save_setting(tmp_path, clock):
    """`save_only_model`, `save_strategy="best"` and `save_total_limit=1` do not remove what
    is needed to resume.
    """
    changes = {"save_only_model": True, "save_strategy": "best", "save_total_limit": 1}
    # The first evaluation stays the best.
    changes |= {
        "metric_for_best_model": "loss",
        "greater_is_better": True,
        "load_best_model_at_end": True,
    }
    changes |= {"eval_strategy": "steps", "eval_steps": 2}
    train_small(tmp_path, [clock, TimeLimitCallback(timedelta(hours=1))], **changes)
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {
        "checkpoint-2",
        "checkpoint-6",
    }
    assert (tmp_path / "checkpoint-6" / "optimizer.pt").exists()
    assert not (tmp_path / "checkpoint-2" / "optimizer.pt").exists()
