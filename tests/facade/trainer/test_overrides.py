"""Override points are real: what a subclass replaces is called by the running system, in old
signatures too.

The names are those of the documents of the API, and those that are not in them but that libraries
of trainers override.
"""

import types
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from helpers.trainer.tiny_trainings import (
    At,
    losses,
    make_trainer,
    points,
    tiny,
    trained_trainer,
    with_trainer_in_callbacks,
)
from lightrainer import Trainer

PHASES = {
    "construction": (
        """
        call_model_init create_accelerator_and_postprocess is_local_process_zero is_world_process_zero add_callback
        _validate_args
    """
    ),
    "training": (
        """
        call_model_init compute_loss compute_loss_context_manager create_optimizer create_optimizer_and_scheduler
        create_scheduler evaluate evaluation_loop floating_point_ops get_batch_samples get_cp_size
        get_decay_parameter_names get_eval_dataloader get_num_trainable_parameters get_optimizer_cls_and_kwargs
        get_sp_size get_total_train_batch_size get_tp_size get_train_dataloader is_local_process_zero
        is_world_process_zero log num_examples prediction_step save_model set_initial_training_values store_flos
        training_step _clip_grad_norm _determine_best_metric _evaluate _get_collator_with_removed_columns
        _get_dataloader _get_eval_sampler _get_grad_norm _get_learning_rate _get_num_items_in_batch _get_output_dir
        _get_train_sampler _inner_training_loop _load_best_model _maybe_log_save_evaluate _move_model_to_device
        _prepare_input _prepare_inputs _save _save_checkpoint _save_optimizer_and_scheduler _save_rng_state
        _set_signature_columns_if_needed _track_num_input_tokens
    """
    ),
    "resuming": (
        "_load_from_checkpoint _load_optimizer_and_scheduler _load_rng_state _load_callback_state"
    ),
    "evaluating": (
        """
        get_eval_dataloader evaluation_loop prediction_step compute_loss compute_loss_context_manager num_examples
        log _get_eval_sampler _prepare_inputs _get_dataloader
    """
    ),
    "predicting": (
        "get_test_dataloader evaluation_loop prediction_step compute_loss num_examples "
        "_get_eval_sampler"
    ),
    "reporting": "metrics_format is_world_process_zero",
}
"""Documented methods, and others that libraries override, by the phase of a script in which they
are called.
"""
PLACES = [(phase, name) for phase, names in PHASES.items() for name in names.split()]
FOR_PEOPLE = """
    autocast_smart_context_manager create_model_card get_learning_rates get_optimizer_group hyperparameter_search
    init_hf_repo log_metrics pop_callback predict push_to_hub remove_callback save_metrics save_state train
"""
"""Called by people, or by nothing in the reference either."""


def test_overrides_cover_every_documented_method():
    documented = vars(pytest.importorskip("transformers").Trainer)
    names = {
        name
        for name, value in documented.items()
        if not name.startswith("_") and hasattr(value, "__code__")
    }
    names |= {
        name
        for name, value in documented.items()
        if isinstance(value, staticmethod) and name[0] != "_"
    }
    assert {name for _, name in PLACES if name[0] != "_"} | {*FOR_PEOPLE.split()} == names


def counting(names):
    """A subclass that counts the calls of each of its methods, and passes them on."""

    def counted(name):
        def method(self, *positional, **keywords):
            cls.calls.append(name)
            return getattr(super(cls, self), name)(*positional, **keywords)

        return method

    cls: Any = type("Counting", (Trainer,), {name: counted(name) for name in names})
    cls.calls = []
    return cls


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """Methods called in each phase of a script."""
    cls = counting({*FOR_PEOPLE.split(), *(name for _, name in PLACES), "_remove_unused_columns"})
    folder = tmp_path_factory.mktemp("calls")
    saving = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}

    def build():
        return make_trainer(
            folder, cls, model_init=lambda: tiny(), load_best_model_at_end=True, **saving
        )

    methods = {}

    def phase(name, action):
        cls.calls.clear()
        result = action()
        methods[name] = set(cls.calls)
        return result

    trainer = phase("construction", build)
    phase("training", trainer.train)
    phase("evaluating", trainer.evaluate)
    phase("predicting", lambda: trainer.predict(points(5)))
    phase("reporting", lambda: trainer.log_metrics("eval", {"eval_loss": 1.0}))
    resumed = build()
    phase("resuming", lambda: resumed.train(resume_from_checkpoint=str(folder / "checkpoint-2")))
    return methods


@pytest.mark.parametrize(("phase", "name"), PLACES)
def test_override_is_called_by_the_running_system(calls, phase, name):
    assert name in calls[phase]


def test_columns_of_tables_are_removed_by_a_method(tmp_path):
    import datasets

    table = datasets.Dataset.from_dict({"x": [[0.5] * 8] * 4, "labels": [1] * 4, "name": ["a"] * 4})
    cls = counting(["_remove_unused_columns"])
    make_trainer(tmp_path, cls, train_dataset=table).train()
    assert cls.calls == ["_remove_unused_columns"]


def pushed(self, model, inputs, return_outputs=False):
    """A loss like no other: the weights show that it was used."""
    outputs = model(inputs["x"])
    loss = ((outputs["logits"].sum(dim=1) - inputs["labels"]) ** 2).mean()
    return (loss, outputs) if return_outputs else loss


def plain_loader(self):
    return DataLoader(points(), batch_size=4)


def test_methods_replaced_on_one_trainer(tmp_path):
    """Some libraries set functions on an instance; they take part like a subclass's methods."""
    replaced = {"compute_loss": pushed, "get_train_dataloader": plain_loader}
    trainer = make_trainer(tmp_path, train_dataset=None)
    for name, function in replaced.items():
        setattr(trainer, name, types.MethodType(function, trainer))
    trainer.train()
    expected = trained_trainer(tmp_path, type("Both", (Trainer,), replaced))
    assert losses(trainer) == losses(expected)


def test_loss_replaced_on_the_class_without_items(tmp_path, monkeypatch):
    """It may lack `num_items_in_batch`, as an override of a subclass may."""
    expected = trained_trainer(tmp_path, type("Pushed", (Trainer,), {"compute_loss": pushed}))
    monkeypatch.setattr(Trainer, "compute_loss", pushed)
    assert losses(trained_trainer(tmp_path, Trainer)) == losses(expected)


def test_log_without_start_time(tmp_path):
    """As in scripts for older versions."""

    class Old(Trainer):
        def log(self, logs):
            super().log({**logs, "mine": 1})

    assert all(entry["mine"] == 1 for entry in trained_trainer(tmp_path, Old).state.log_history)


def forked(of, cache_enabled=True):
    of.entered += 1
    return torch.random.fork_rng()


WHOLE, CAST = "compute_loss_context_manager", "autocast_smart_context_manager"


@pytest.mark.parametrize("way", [WHOLE, CAST, "in the object", "in the class"])
def test_override_of_the_context_around_the_loss(tmp_path, way, monkeypatch):
    """Either of the two methods may be replaced, in a class or an object."""
    cls = type("Forked", (Trainer,), {way: forked, "entered": 0})
    trainer = make_trainer(
        tmp_path, cls, callbacks=[At("on_step_end", lambda t, s, c: t.evaluate(), step=4)]
    )
    if way == "in the object":
        trainer.autocast_smart_context_manager = types.MethodType(forked, trainer)
    elif way == "in the class":
        base = next(base for base in Trainer.__mro__ if WHOLE in vars(base))
        monkeypatch.setattr(base, WHOLE, forked)
    with_trainer_in_callbacks(trainer).train()
    assert trainer.entered == 4 + 2
