"""The bar and the printed lines."""

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


def test_progress_loss_and_learning_rate_stand_beside_the_bar(capsys):
    callback, state = ProgressCallback(), TrainerState(max_steps=10, train_batch_size=4)
    run(callback, state)
    callback.on_log(ARGS, state, CONTROL, logs={"eval_loss": 2.5})
    callback.on_evaluate(ARGS, state, CONTROL)
    shown = callback.training_bar.postfix
    assert [part.split("=")[0] for part in shown.split(", ")] == [
        "loss",
        "lr",
        "eval_loss",
    ]
    assert "loss=1.235" in shown
    assert callback.training_bar.n == 3
    callback.on_train_end(ARGS, state, CONTROL)
    assert callback.training_bar is None
    assert "3/10" in capsys.readouterr().err


def test_progress_bar_of_a_resumed_training_starts_at_its_step():
    callback, state = ProgressCallback(), TrainerState(max_steps=10, global_step=6)
    callback.on_train_begin(ARGS, state, CONTROL)
    assert callback.training_bar.n == callback.training_bar.initial == 6
    run(callback, state, steps=1)  # a second training, after an interrupted one, gets a new bar
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
