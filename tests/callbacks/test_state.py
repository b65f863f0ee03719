"""State, control, and their JSON file, which the reference reads and writes as well."""

import dataclasses
import json
import logging
import os
from types import SimpleNamespace

import numpy as np
import optuna
import pytest
import torch
from transformers import trainer_callback as reference

import lightrainer.callbacks as ours
from lightrainer.callbacks import TrainerControl, TrainerState


def filled(module):
    """A state with something in every field."""
    early = module.EarlyStoppingCallback(4, 0.5)
    early.early_stopping_patience_counter = 3
    values = {
        "epoch": 1.25,
        "global_step": 7,
        "max_steps": 20,
        "logging_steps": 2,
        "eval_steps": 3,
        "save_steps": 4,
    }
    values |= {
        "train_batch_size": 8,
        "num_train_epochs": 3,
        "num_input_tokens_seen": 123,
        "total_flos": 1.5e12,
    }
    values |= {
        "best_metric": -float("inf"),
        "best_global_step": 6,
        "best_model_checkpoint": "out/checkpoint-6",
    }
    values |= dict.fromkeys(("is_local_process_zero", "is_world_process_zero"), False) | {
        "is_hyper_param_search": True
    }
    values |= {
        "trial_name": "trial 1",
        "trial_params": {"learning_rate": 1e-4, "optim": "sgd", "n": 2},
    }
    values["log_history"] = [
        {"loss": 0.1 + 0.2, "step": 2},
        {"eval_loss": float("inf"), "note": "ü", "step": 3},
    ]
    callbacks = [early, module.TrainerControl(should_log=True), module.EarlyStoppingCallback()]
    assert {*values, "stateful_callbacks"} == {
        field.name for field in dataclasses.fields(module.TrainerState)
    }
    return module.TrainerState(**values, stateful_callbacks=callbacks)


def test_fields_and_defaults_are_those_of_the_reference():
    assert dataclasses.asdict(TrainerState()) == dataclasses.asdict(reference.TrainerState())
    assert dataclasses.asdict(TrainerControl()) == dataclasses.asdict(reference.TrainerControl())
    mine, theirs = ([f.name for f in dataclasses.fields(m.TrainerState)] for m in (ours, reference))
    assert mine == theirs


def test_trainer_state_file_equals_the_reference_byte_for_byte(tmp_path):
    for module in (ours, reference):
        filled(module).save_to_json(str(tmp_path / f"{module.__name__}.json"))
    mine, theirs = (
        (tmp_path / f"{module.__name__}.json").read_bytes() for module in (ours, reference)
    )
    assert mine == theirs
    changed = dataclasses.replace(filled(ours), global_step=8)
    changed.save_to_json(tmp_path / "changed.json")
    assert (tmp_path / "changed.json").read_bytes() != theirs


@pytest.mark.parametrize(("writer", "reader"), [(ours, reference), (reference, ours), (ours, ours)])
def test_trainer_state_is_exchanged_with_the_reference(writer, reader, tmp_path):
    path = tmp_path / "trainer_state.json"
    written = filled(writer)
    written.save_to_json(path)
    read = reader.TrainerState.load_from_json(path)
    assert dataclasses.asdict(read) == dataclasses.asdict(written)
    early = reader.EarlyStoppingCallback.from_state(
        read.stateful_callbacks["EarlyStoppingCallback"][0]
    )
    assert early.early_stopping_patience_counter == 3


ODD_ENTRIES = [{}, {"a": None}, {"list": [1, [2]], "of": {"x": {}}}, {"text": "},\n", "é": True}]


@pytest.mark.parametrize("entries", [[], [{}], ODD_ENTRIES], ids=["none", "empty", "odd"])
def test_odd_histories_are_written_byte_for_byte_as_in_the_reference(tmp_path, entries):
    for module in (ours, reference):
        module.TrainerState(log_history=[*entries]).save_to_json(
            str(tmp_path / f"{module.__name__}.json")
        )
    mine, theirs = (
        (tmp_path / f"{module.__name__}.json").read_bytes() for module in (ours, reference)
    )
    assert mine == theirs


@pytest.mark.parametrize("index", [0, 1, -1])
def test_trainer_state_entry_changed_after_a_save_is_saved(tmp_path, index):
    state = TrainerState(
        log_history=[{"loss": float(step), "nested": {"step": step}} for step in range(3)]
    )
    state.save_to_json(tmp_path / "s.json")
    state.log_history[index]["note"] = "added"
    state.log_history[index]["nested"]["step"] = 7
    state.save_to_json(tmp_path / "s.json")
    assert TrainerState.load_from_json(tmp_path / "s.json").log_history == state.log_history


def test_numbers_of_numpy_and_torch_become_plain_ones(tmp_path):
    values = {
        "a": np.float32(0.5),
        "b": np.int64(3),
        "c": torch.tensor(2.5),
        "d": np.array([1, 2]),
        "p": tmp_path,
    }
    TrainerState(log_history=[values]).save_to_json(tmp_path / "s.json")
    read = TrainerState.load_from_json(tmp_path / "s.json").log_history[0]
    assert read == {"a": 0.5, "b": 3, "c": 2.5, "d": [1, 2], "p": str(tmp_path)}


def test_trainer_state_value_without_json_form_is_named(tmp_path):
    path = tmp_path / "s.json"
    TrainerState(global_step=1).save_to_json(path)
    with pytest.raises(TypeError, match="of type object cannot be converted"):
        TrainerState(log_history=[{"x": object()}]).save_to_json(path)
    assert TrainerState.load_from_json(path).global_step == 1
    assert os.listdir(tmp_path) == ["s.json"]


def test_trainer_state_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "s.json"
    TrainerState(global_step=1).save_to_json(path)

    def full(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        TrainerState(global_step=2).save_to_json(path)
    assert TrainerState.load_from_json(path).global_step == 1
    assert os.listdir(tmp_path) == ["s.json"]


DAMAGED = {
    b"": "empty",
    b'{"global_step": 3, "log_his': "Unterminated string",
    b"[1, 2]": "a JSON list",
    b'{"global_step": "three"}': "'global_step' is 'three'",
}


def test_trainer_state_damaged_file_is_named_with_the_reason(tmp_path):
    path = tmp_path / "trainer_state.json"
    for content, reason in DAMAGED.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"trainer_state\.json .*{reason}"):
            TrainerState.load_from_json(path)


def test_entries_of_other_versions_are_left_out_with_a_warning_and_missing_ones_take_defaults(
    tmp_path, caplog
):
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"global_step": 5, "from_the_future": 1}))
    with caplog.at_level(logging.WARNING, "lightrainer"):
        read = TrainerState.load_from_json(path)
    assert read == TrainerState(global_step=5)
    assert "from_the_future" in caplog.text


@pytest.mark.parametrize(
    "given", [(10, 20, 30), (0.1, 0.25, 0.333), (5, None, 0.5), (1, 1.0, 0.0001)]
)
@pytest.mark.parametrize("max_steps", [1, 100, 101])
def test_compute_steps_is_as_in_the_reference(given, max_steps):
    args = SimpleNamespace(
        **dict(zip(("logging_steps", "eval_steps", "save_steps"), given, strict=True))
    )
    states = [module.TrainerState() for module in (ours, reference)]
    for state in states:
        state.compute_steps(args, max_steps)
    assert dataclasses.asdict(states[0]) == dataclasses.asdict(states[1])


@pytest.mark.parametrize("trial", [None, optuna.trial.FixedTrial({"lr": 0.5})])
@pytest.mark.parametrize("hp_name", [None, lambda trial: f"named {trial}"])
def test_init_training_references_is_as_in_the_reference(trial, hp_name):
    """But that a trial can be a dict."""
    zero = {"is_local_process_zero": lambda: True, "is_world_process_zero": lambda: False}
    trainer = SimpleNamespace(hp_name=hp_name, _trial="t1", **zero)
    states = [module.TrainerState() for module in (ours, reference)]
    for state in states:
        state.init_training_references(trainer, 12, 3, trial)
    assert dataclasses.asdict(states[0]) == dataclasses.asdict(states[1])
    states[0].init_training_references(trainer, 12, 3, {"lr": 1})
    assert (states[0].max_steps, states[0].trial_params) == (12, {"lr": 1})


@pytest.mark.parametrize("method", ["_new_training", "_new_epoch", "_new_step"])
def test_control_resets_the_switches_that_the_reference_resets(method):
    controls = [module.TrainerControl(*[True] * 5) for module in (ours, reference)]
    for control in controls:
        getattr(control, method)()
    mine, theirs = map(dataclasses.asdict, controls)
    assert mine == theirs
    assert not all(mine.values())
