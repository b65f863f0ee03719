"""Refuse impossible searches clearly, before anything is written."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch

from helpers.search.small_searches import searcher, space
from helpers.trainer.tiny_trainings import files, make_trainer, tiny
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


def test_optimizers_do_not_go_with_a_search(tmp_path):
    trainer = searcher(tmp_path)
    trainer.optimizer = torch.optim.SGD(tiny().parameters(), lr=0.1)
    refused(
        trainer, RuntimeError, "Override create_optimizer_and_scheduler", space, folder=tmp_path
    )


def test_search_backend_that_is_not_installed(tmp_path, monkeypatch):
    original = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "ray" else original(name, *rest),
    )
    refused(
        searcher(tmp_path), MissingBackendError, r"pip install 'ray\[tune\]'", space, backend="ray"
    )


OPTIONS = [
    ({"backend": "optna"}, ValueError, "backend='optna' is not known. Did you mean 'optuna'"),
    ({"backend": "wandb"}, NotImplementedError, "backend=.wandb.*report_to=.wandb"),
    ({"backend": "sigopt"}, NotImplementedError, "backend=.sigopt"),
    ({"n_trials": 0}, ValueError, "n_trials=0"),
    ({"direction": "minimise"}, ValueError, "direction='minimise'.*'minimize'"),
    ({"compute_objective": "score"}, TypeError, "compute_objective='score'.*function"),
    ({"direction": []}, ValueError, "direction="),
    ({"final_model": "bets"}, ValueError, "final_model='bets'.*'best'"),
    ({"time_out": 3}, TypeError, "time_out=3.*'timeout'"),
    ({"storage": "study"}, ValueError, "storage='study'"),
]


@pytest.mark.parametrize(("options", "error", "match"), OPTIONS)
def test_search_options_that_cannot_be_are_refused(tmp_path, options, error, match):
    refused(searcher(tmp_path), error, match, space, folder=tmp_path, **options)


def test_search_refuses_nested_names(tmp_path):
    def nested(trial):
        return {"lr_scheduler_kwargs.num_cycles": trial.suggest_int("cycles", 1, 2)}

    with pytest.raises(ValueError, match=r"nested name 'lr_scheduler_kwargs\.num_cycles'"):
        searcher(tmp_path).hyperparameter_search(nested, n_trials=2)


def test_search_requirements(tmp_path):
    refused(make_trainer(tmp_path), RuntimeError, r"pass model_init=\.\.\.", space, folder=tmp_path)
    trainer = searcher(tmp_path, eval_dataset=None, eval_strategy="no", eval_steps=None)
    refused(trainer, ValueError, "judges trials by an evaluation", space, folder=tmp_path)


ADDRESSES = ["sqlite:////no/such/folder/study.db", "postgresql+nothing://user:secret@localhost/x"]


@pytest.mark.parametrize("address", [GARBAGE, *ADDRESSES])
def test_search_storage_that_is_unreachable(tmp_path, tmp_path_factory, monkeypatch, address):
    if address == GARBAGE:
        monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
        Path(address).write_text("no journal\n")
    trainer = searcher(tmp_path)
    with pytest.raises((StorageError, ImportError)) as raised:
        trainer.hyperparameter_search(space, storage=address)
    assert "storage=" in str(raised.value)
    assert "secret" not in str(raised.value)
    assert files(tmp_path) == []


OBJECTIVES = [
    (lambda metrics: None, ValueError, "returned None.*number.*eval_loss="),
    (lambda metrics: metrics["eval_f1"], KeyError, "uses the metric 'eval_f1'.*It has: eval_loss"),
    (lambda metrics: [1.0, 2.0], ValueError, "gives 2 values, but direction has 1"),
]


@pytest.mark.parametrize(("objective", "error", "match"), OBJECTIVES)
def test_search_objectives_that_cannot_be_are_refused(tmp_path, objective, error, match):
    trainer = searcher(tmp_path)
    with pytest.raises(error, match=match):
        trainer.hyperparameter_search(space, objective, n_trials=3)
    # at once, not after three trials
    assert [trial.state.name for trial in trainer.study.trials] == ["FAIL"]
    assert trainer.args.learning_rate == 1e-2
    assert files(tmp_path) == []


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_search_impossible_value_fails_the_trial(tmp_path, caplog, value):
    """One bad rate must not end the search; if all are bad, an error reports it."""
    trainer = searcher(tmp_path)
    count = iter(range(100))
    best = trainer.hyperparameter_search(
        space, lambda metrics: value if next(count) < 2 else metrics["eval_loss"], n_trials=3
    )
    assert [trial.state.name for trial in trainer.study.trials] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert f"Trial 0 fails: the objective is {value}" in caplog.text
    assert trainer.evaluate()["eval_loss"] == best.objective
    with pytest.raises(ValueError, match=rf"(?s)2 fail.*trial 0: .* {value}.*trial 1: .* {value}"):
        trainer.hyperparameter_search(space, lambda metrics: value, n_trials=2)
    assert trainer.train().global_step == 4


def test_search_name_cannot_leave_the_folder():
    """What lies there is deleted after a pruned trial."""
    for name in ("../up", "/tmp/x", ".", "..", "a/b", "a\\b", "", 3):
        with pytest.raises(ValueError, match=r"hp_name returned .*not a folder in output_dir"):
            checked_name(name)
