"""TensorBoard logs, read back from the files."""

import json
import os
import socket
from types import SimpleNamespace

import pytest
import torch
from transformers.integrations.integration_utils import rewrite_logs as reference_rewrite

from lightrainer.callbacks import TensorBoardCallback, TrainerControl, TrainerState, rewrite_logs

CONTROL = TrainerControl()


@pytest.fixture(autouse=True)
def _no_directory_from_outside(monkeypatch):
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)


def arguments(output_dir, logging_dir=None):
    values = {"output_dir": str(output_dir), "learning_rate": 0.5, "nothing": "None"}
    return SimpleNamespace(
        output_dir=str(output_dir),
        logging_dir=logging_dir,
        to_json_string=lambda: json.dumps(values),
        to_sanitized_dict=lambda: values,
    )


def read(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(directory)).Reload()


def texts(directory):
    """The texts of a run by tag."""
    events = read(directory)
    return {
        tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode()
        for tag in events.Tags()["tensors"]
    }


def scalars(directory):
    events = read(directory)
    return {
        tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def only_run(output_dir):
    """The one folder below runs/, without any folder in it."""
    (run,) = (output_dir / "runs").iterdir()
    assert not [entry for entry in run.iterdir() if entry.is_dir()]
    return run


def test_numbers_texts_arguments_and_configuration_arrive(tmp_path, caplog):
    callback, state, args = TensorBoardCallback(), TrainerState(global_step=3), arguments(tmp_path)
    model = SimpleNamespace(config={"width": 4})
    logs = {
        "loss": 1.5,
        "epoch": 1,
        "eval_loss": torch.tensor(2.5),
        "test_f1": 0.5,
        "note": "hello",
        "list": [1],
    }
    callback.on_train_begin(args, state, CONTROL, model=model)
    callback.on_log(args, state, CONTROL, logs=logs)
    callback.on_train_end(args, state, CONTROL)
    assert callback.tb_writer is None
    run = only_run(tmp_path)
    assert run.name.endswith(socket.gethostname())
    expected = {
        "train/loss": [(3, 1.5)],
        "train/epoch": [(3, 1.0)],
        "eval/loss": [(3, 2.5)],
        "test/f1": [(3, 0.5)],
    }
    assert scalars(run) == expected
    written = texts(run)
    assert json.loads(written["args/text_summary"])["learning_rate"] == 0.5
    assert json.loads(written["model_config/text_summary"]) == {"width": 4}
    assert written["train/note/text_summary"] == "hello"
    assert "'train/list' = [1] of type list" in caplog.text
    hparams = read(run).summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"learning_rate" in hparams


def test_tensorboard_subclass_passes_logs_by_position(tmp_path):
    """As it does with transformers, whose `on_log` has no parameter before them."""

    class WithRate(TensorBoardCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            super().on_log(args, state, control, {**logs, "rate": 0.5}, **kwargs)

    callback, args = WithRate(), arguments(tmp_path)
    callback.on_log(args, TrainerState(global_step=2), CONTROL, logs={"loss": 1.0}, model=None)
    callback.on_train_end(args, TrainerState(), CONTROL)
    assert scalars(only_run(tmp_path)) == {"train/loss": [(2, 1.0)], "train/rate": [(2, 0.5)]}


def test_tensorboard_evaluation_after_training_goes_to_the_same_run(tmp_path):
    callback, args = TensorBoardCallback(), arguments(tmp_path)
    callback.on_train_begin(args, TrainerState(), CONTROL)
    callback.on_train_end(args, TrainerState(), CONTROL)
    callback.on_log(args, TrainerState(global_step=9), CONTROL, logs={"eval_loss": 1.0})
    assert scalars(only_run(tmp_path)) == {"eval/loss": [(9, 1.0)]}
    callback.on_train_end(args, TrainerState(), CONTROL)


@pytest.mark.parametrize(("argument", "environment", "chosen"), [("a", "b", "a"), (None, "b", "b")])
def test_tensorboard_directory_of_the_argument_precedes_the_environment(
    argument, environment, chosen, tmp_path, monkeypatch
):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / environment))
    args = arguments(tmp_path / "out", argument and str(tmp_path / argument))
    callback = TensorBoardCallback()
    callback.on_log(args, TrainerState(), CONTROL, logs={"loss": 1.0})
    callback.on_train_end(args, TrainerState(), CONTROL)
    assert os.listdir(tmp_path) == [chosen]


def test_tensorboard_trial_has_a_separate_run(tmp_path):
    callback, args = TensorBoardCallback(), arguments(tmp_path, str(tmp_path / "logs"))
    for number in (1, 2):
        state = TrainerState(is_hyper_param_search=True, trial_name=f"trial-{number}")
        callback.on_train_begin(args, state, CONTROL)
        callback.on_log(args, state, CONTROL, logs={"loss": number})
        callback.on_train_end(args, state, CONTROL)
    assert sorted(os.listdir(tmp_path / "logs")) == ["trial-1", "trial-2"]
    assert scalars(tmp_path / "logs" / "trial-2") == {"train/loss": [(0, 2.0)]}


def test_tensorboard_writer_passed_in_is_used_and_closed(tmp_path):
    calls = []

    class Writer:
        def __getattr__(self, name):
            return lambda *args, **kwargs: calls.append((name, args, kwargs))

    callback, args = TensorBoardCallback(Writer()), arguments(tmp_path)
    callback.on_train_begin(args, TrainerState(), CONTROL)
    callback.on_log(args, TrainerState(global_step=1), CONTROL, logs={"loss": 1.0})
    callback.on_train_end(args, TrainerState(), CONTROL)
    assert [name for name, *_ in calls] == [
        "add_text",
        "add_hparams",
        "add_scalar",
        "flush",
        "close",
    ]
    assert ("add_scalar", ("train/loss", 1.0, 1), {}) in calls
    assert os.listdir(tmp_path) == []


def test_tensorboard_subclass_opens_its_own_writer(tmp_path):
    """As in transformers, an override may also open none, and nothing is written."""
    opened = []

    class Own(TensorBoardCallback):
        def _init_summary_writer(self, args):
            opened.append(self.logging_dir)
            if args.logging_dir is None:
                super()._init_summary_writer(args)

    for logging_dir in (None, str(tmp_path / "logs")):
        callback, args = Own(), arguments(tmp_path, logging_dir)
        callback.on_train_begin(args, TrainerState(), CONTROL)
        callback.on_log(args, TrainerState(), CONTROL, logs={"loss": 1.0})
        callback.on_train_end(args, TrainerState(), CONTROL)
    run = only_run(tmp_path)
    assert set(opened) == {str(run), str(tmp_path / "logs")}
    assert scalars(run) == {"train/loss": [(0, 1.0)]}
    assert os.listdir(tmp_path) == ["runs"]


def test_names_are_grouped_as_in_the_reference():
    logs = dict.fromkeys(
        ("loss", "eval_loss", "test_a_b", "evaluation", "eval", "testing_x", "eval_", "a_eval_b"),
        0,
    )
    assert rewrite_logs(logs) == reference_rewrite(logs)
