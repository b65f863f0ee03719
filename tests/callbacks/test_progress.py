"""The bar and the printed lines."""

import re
from types import SimpleNamespace

import pytest
from transformers import trainer_callback as reference

import lightrainer.callbacks as ours
from lightrainer.callbacks import PrinterCallback, ProgressCallback, TrainerControl, TrainerState

ARGS = SimpleNamespace(gradient_accumulation_steps=2, world_size=1)
CONTROL = TrainerControl()
LOGS = {"loss": 1.23456789, "learning_rate": 5e-5, "step": 3, "note": "n", "total_flos": 1e9}


class NoLength:
    """An iterable dataset's loader."""


def run(callback, state, steps=3, logs=LOGS):
    callback.on_train_begin(ARGS, state, CONTROL)
    for _ in range(steps):
        state.global_step += 1
        callback.on_step_end(ARGS, state, CONTROL)
    callback.on_log(ARGS, state, CONTROL, logs=logs)


@pytest.mark.parametrize("name", ["ProgressCallback", "PrinterCallback"])
def test_logs_are_written_as_the_reference_writes_them(name, capsys):
    written = []
    for module in (ours, reference):
        callback = getattr(module, name)()
        run(callback, TrainerState(max_steps=10), logs=dict(LOGS))
        callback.on_train_end(ARGS, TrainerState(), CONTROL)
        written.append(capsys.readouterr().out)
    assert written[0] == written[1]
    assert "1.235" in written[0]


def test_loss_learning_rate_and_speed_stand_beside_the_bar(capsys):
    callback, state = ProgressCallback(), TrainerState(max_steps=10, train_batch_size=4)
    run(callback, state)
    callback.on_log(ARGS, state, CONTROL, logs={"eval_loss": 2.5})
    callback.on_evaluate(ARGS, state, CONTROL)
    shown = callback.training_bar.postfix
    assert [part.split("=")[0] for part in shown.split(", ")] == [
        "loss",
        "lr",
        "samples/s",
        "eval_loss",
    ]
    assert "loss=1.235" in shown
    assert callback.training_bar.n == 3
    callback.on_train_end(ARGS, state, CONTROL)
    assert callback.training_bar is None
    assert "3/10" in capsys.readouterr().err


def test_speed_is_in_tokens_where_they_are_counted_and_leaves_out_pauses(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("lightrainer.callbacks._speed_meter.time.perf_counter", lambda: now[0])
    callback, state = ProgressCallback(), TrainerState(max_steps=10)
    callback.on_train_begin(ARGS, state, CONTROL)
    now[0] += 100
    callback.on_evaluate(ARGS, state, CONTROL)
    now[0] += 2
    state.global_step, state.num_input_tokens_seen = 1, 3000
    callback.on_log(ARGS, state, CONTROL, logs=LOGS)
    assert "tokens/s=1500" in callback.training_bar.postfix
    callback.on_train_end(ARGS, state, CONTROL)


def test_progress_bar_of_a_resumed_training_starts_at_its_step():
    callback, state = ProgressCallback(), TrainerState(max_steps=10, global_step=6)
    callback.on_train_begin(ARGS, state, CONTROL)
    assert callback.training_bar.n == callback.training_bar.initial == 6
    run(callback, state, steps=1)  # a second one after one that broke off begins anew
    assert callback.training_bar.n == 7
    callback.on_train_end(ARGS, state, CONTROL)


def test_evaluation_has_a_separate_bar_if_its_length_is_known():
    callback, state = ProgressCallback(), TrainerState()
    callback.on_prediction_step(ARGS, state, CONTROL, eval_dataloader=NoLength())
    callback.on_prediction_step(ARGS, state, CONTROL, eval_dataloader=None)
    assert callback.prediction_bar is None
    for _ in range(2):
        callback.on_prediction_step(ARGS, state, CONTROL, eval_dataloader=[0, 1, 2])
    assert (callback.prediction_bar.n, callback.prediction_bar.total) == (2, 3)
    callback.on_evaluate(ARGS, state, CONTROL, metrics={})
    assert callback.prediction_bar is None


def test_progress_is_hidden_on_other_ranks(capsys):
    state = TrainerState(max_steps=10, is_world_process_zero=False, is_local_process_zero=False)
    for callback in (ProgressCallback(), PrinterCallback()):
        run(callback, state)
        callback.on_prediction_step(ARGS, state, CONTROL, eval_dataloader=[0])
        callback.on_train_end(ARGS, state, CONTROL)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_progress_narrow_terminal_keeps_bar_steps_and_remaining_time(width, capsys, monkeypatch):
    """Values beside the bar are left out, the loss last."""
    callback, state = ProgressCallback(), TrainerState(max_steps=10_000, train_batch_size=4)
    make_bar = callback._make_bar

    def bar_of_that_width(name, **options):
        bar = make_bar(name, **options)
        bar.dynamic_ncols = lambda stream: (width, 25)
        return bar

    monkeypatch.setattr(callback, "_make_bar", bar_of_that_width)
    logs = {"loss": 1.23456789, "eval_loss": 2.5, "learning_rate": 5e-5, "epoch": 0.25}
    run(callback, state, logs=logs)
    line = str(callback.training_bar)
    callback.on_train_end(ARGS, state, CONTROL)
    assert len(line) <= width
    assert re.search(r"3/10000 \[\d\d:\d\d<[\d:?]+, +[\d.]+(it/s|s/it)", line), line
    assert len(re.search(r"\|(.*)\|", line)[1]) >= 8
    assert ("loss=1.235" in line) is (width >= 80)
    assert ("samples/s" in line) is (width >= 200)
