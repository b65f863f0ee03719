"""Refuse impossible searches clearly, before anything is written."""

import importlib.util
import math
import re
from pathlib import Path

import optuna
import pytest
import torch
from small_searches import searcher, space
from tiny import files, tiny, trainer

from lightrainer.facade.search.hyperparameter_search import MissingBackendError
from lightrainer.facade.search.storages import StorageError
from lightrainer.facade.search.trial_folders import checked_name

GARBAGE = "garbage.log"


def refused(made, error, match, *args, folder=None, **options):
    with pytest.raises(error, match=match):
        made.hyperparameter_search(*args, **{"n_trials": 2, **options})
    assert made.hp_search_backend is None
    assert made.study is None
    assert folder is None or files(folder) == []


def test_there_is_no_model_init(tmp_path):
    refused(trainer(tmp_path), RuntimeError, r"pass model_init=\.\.\.", space, folder=tmp_path)


def test_optimizers_do_not_go_with_a_search(tmp_path):
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="optimizers cannot be passed together with model_init"):
        searcher(tmp_path, optimizers=(optimizer, None))
    made = searcher(tmp_path)
    made.optimizer = optimizer
    refused(made, RuntimeError, "Override create_optimizer_and_scheduler", space, folder=tmp_path)


BACKENDS = [
    ("optna", ValueError, "backend='optna' is not known. Did you mean 'optuna'"),
    ("wandb", NotImplementedError, "is led by its server"),
    ("sigopt", NotImplementedError, "shut down"),
]


@pytest.mark.parametrize(("backend", "error", "match"), BACKENDS)
def test_backends(tmp_path, backend, error, match):
    refused(searcher(tmp_path), error, match, space, backend=backend, folder=tmp_path)


def test_a_backend_that_is_not_installed(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else found(name, *rest))
    refused(searcher(tmp_path), MissingBackendError, r"pip install 'ray\[tune\]'", space, backend="ray")


def test_there_is_nothing_to_evaluate_on(tmp_path):
    made = searcher(tmp_path, eval_dataset=None, eval_strategy="no", eval_steps=None)
    refused(made, ValueError, "judges trials by an evaluation", space, folder=tmp_path)


OPTIONS = [
    ({"n_trials": 0}, ValueError, "n_trials=0"),
    ({"direction": "minimise"}, ValueError, "direction='minimise'.*'minimize'"),
    ({"directions": ["minimize"]}, TypeError, "directions="),
    ({"compute_objective": "score"}, ValueError, "'score'.*direction='minimize'"),
    ({"compute_objective": ["loss", "score"]}, ValueError, "'score': .*, one for each of the 2 metrics"),
    ({"compute_objective": ["loss", "f1"], "direction": "maximize"}, ValueError, "direction='maximize'.*loss, f1"),
    ({"pruning_unit": "epoch"}, ValueError, "pruning_unit='epoch'.*'epochs'"),
    ({"final_model": "bets"}, ValueError, "final_model='bets'.*'best'"),
    ({"time_out": 3}, TypeError, "time_out=3.*'timeout'"),
    ({"n_jobs": 0}, ValueError, "n_jobs=0"),
    ({"enqueue": [{"learning_rat": 1e-3}]}, ValueError, "learning_rat=0.001.*'learning_rate'"),
    ({"enqueue": [{"learning_rate": 1e-3}, {"learning_rate": 7.0}]}, ValueError, "7.0.*'learning_rate'"),
    ({"begin_with": "study.db"}, TypeError, "begin_with='study.db'.*load_study"),
    ({"begin_with": optuna.create_study(direction="maximize")}, ValueError, "maximize.*minimize"),
    ({"sampler": optuna.samplers.RandomSampler}, TypeError, "sampler=.*optuna.samplers"),
    ({"pruner": "median"}, TypeError, "pruner='median'.*optuna.pruners"),
    ({"storage": "study"}, ValueError, "storage='study'"),
    ({"compute_objective": 3}, TypeError, "compute_objective=3"),
]


@pytest.mark.parametrize(("options", "error", "match"), OPTIONS)
def test_options(tmp_path, options, error, match):
    refused(searcher(tmp_path), error, match, space, folder=tmp_path, **options)


ADDRESSES = ["sqlite:////no/such/folder/study.db", "postgresql+nothing://user:secret@localhost/x"]


@pytest.mark.parametrize("address", [GARBAGE, *ADDRESSES, "/no/such/folder/s.log"])
def test_a_storage_that_cannot_be_reached(tmp_path, tmp_path_factory, monkeypatch, address):
    if address == GARBAGE:
        monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
        Path(address).write_text("no journal\n")
    made = searcher(tmp_path)
    with pytest.raises((StorageError, ImportError)) as raised:
        made.hyperparameter_search(space, storage=address)
    assert "storage=" in str(raised.value)
    assert "secret" not in str(raised.value)
    assert files(tmp_path) == []


OBJECTIVES = [
    (lambda metrics: None, ValueError, "returned None.*number.*eval_loss="),
    (lambda metrics: "low", ValueError, "returned 'low'"),
    (lambda metrics: metrics["eval_f1"], KeyError, "uses the metric 'eval_f1'.*It has: eval_loss"),
    ("eval_lloss", KeyError, "Did you mean 'eval_loss'"),
    (lambda metrics: [1.0, 2.0], ValueError, "gives 2 values, but direction has 1"),
]


@pytest.mark.parametrize(("objective", "error", "match"), OBJECTIVES)
def test_objectives(tmp_path, objective, error, match):
    made = searcher(tmp_path)
    with pytest.raises(error, match=match):
        made.hyperparameter_search(space, objective, n_trials=3)
    assert [trial.state.name for trial in made.study.trials] == ["FAIL"]  # at once, not after three
    assert made.args.learning_rate == 1e-2
    assert files(tmp_path) == []


def test_a_value_that_is_no_number_is_a_failed_trial(tmp_path, caplog):
    """One bad rate must not end the search; if all are bad, that is said."""
    made = searcher(tmp_path)
    count = iter(range(100))
    best = made.hyperparameter_search(
        space, lambda metrics: math.nan if next(count) < 2 else metrics["eval_loss"], n_trials=3
    )
    assert [trial.state.name for trial in made.study.trials] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert "Trial 0 fails: its objective is nan" in caplog.text
    assert made.evaluate()["eval_loss"] == best.objective
    with pytest.raises(ValueError, match=r"(?s)2 fail.*trial 0: .* nan.*trial 1: .* nan"):
        made.hyperparameter_search(space, lambda metrics: math.nan, n_trials=2)
    assert made.train().global_step == 4


def test_no_trial_was_completed(tmp_path):
    class Always(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            return True

    with pytest.raises(ValueError, match=r"2 pruned\. Let the pruner prune less"):
        searcher(tmp_path).hyperparameter_search(space, n_trials=2, pruner=Always())


VALUES = [
    ([1], TypeError, r"hp_space returned \[1\]"),
    ({"lr_scheduler_kwargs.num_cycles": 1}, ValueError, "nested name 'lr_scheduler_kwargs.num_cycles'.*return the"),
    ({"bf16": "maybe"}, ValueError, "bf16='maybe'.*True or False"),
    ({"per_device_train_batch_size": -1}, ValueError, "per_device_train_batch_size"),
]


@pytest.mark.parametrize(("values", "error", "match"), VALUES)
def test_values(tmp_path, values, error, match):
    made = searcher(tmp_path)
    with pytest.raises(error, match=match):
        made.hyperparameter_search(lambda trial: values, n_trials=1)
    assert made.args.per_device_train_batch_size == 4


@pytest.mark.parametrize("name", ["../up", "/tmp/x", ".", "..", "a/b", "a\\b", "", 3])
def test_names_of_folders(name):
    with pytest.raises(ValueError, match=f"hp_name returned {re.escape(repr(name))}"):
        checked_name(name)
