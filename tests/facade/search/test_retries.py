"""Searches that were stopped, and trials whose process was killed: nothing is lost, nothing is
done twice.
"""

import os
import select
import signal
import sys
from concurrent.futures.process import BrokenProcessPool

import optuna
import pytest

from helpers.processes.starting import code_of, start
from helpers.search.small_searches import goes_on_after_a_kill, random_sampler, searcher, space
from helpers.trainer.tiny_trainings import At, with_trainer_in_callbacks
from lightrainer.facade.search import retries
from lightrainer.facade.search.report import table
from lightrainer.facade.search.storages import disconnect, open_storage


def stop_at(step, error):
    def stop(trainer, state, control):
        if state.trial_name == "run-1":
            raise error

    return At("on_step_end", stop, step=step)


@pytest.mark.parametrize(
    ("error", "kind"), [(KeyboardInterrupt, "sqlite"), (SystemExit(143), "journal")]
)
def test_interrupted_search_resumes_inside_a_trial(tmp_path, error, kind):
    address = f"sqlite:///{tmp_path / 's.db'}" if kind == "sqlite" else str(tmp_path / "s.log")
    options = {
        "storage": address,
        "study_name": "s",
        "load_if_exists": True,
        "sampler": random_sampler(),
    }
    settings = {"save_strategy": "steps", "save_steps": 2, "eval_steps": 1}
    interrupted = with_trainer_in_callbacks(
        searcher(tmp_path / "out", callbacks=[stop_at(3, error)], **settings)
    )
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        interrupted.hyperparameter_search(space, n_trials=3, **options)
    assert [trial.state.name for trial in interrupted.study.trials] == [
        "COMPLETE",
        "FAIL",
        "WAITING",
    ]
    assert interrupted.args.learning_rate == 1e-2

    steps = []
    noting = At("on_step_end", lambda trainer, state, control: steps.append(state.global_step))
    again = searcher(tmp_path / "out", callbacks=[noting], **settings)
    again.hyperparameter_search(space, n_trials=1, **options)
    retried = again.study.trials[2]
    assert steps == [3, 4]  # after the checkpoint of step 2
    assert retried.params == again.study.trials[1].params
    assert list(retried.intermediate_values) == [1, 2, 3, 4]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["run-0", "run-1"]
    rows = table(again.study)
    assert [row["state"] for row in rows] == ["COMPLETE", "INTERRUPTED", "COMPLETE"]
    assert [row["folder"] for row in rows] == [
        str(tmp_path / "out" / name) for name in ("run-0", "run-1", "run-1")
    ]

    # The same value as that of a trial that was never interrupted.
    whole = searcher(tmp_path / "whole", **settings)
    whole.args.learning_rate = retried.params["learning_rate"]
    whole.train()
    assert whole.evaluate()["eval_loss"] == retried.value


@pytest.mark.parametrize("name", ["s.db", "s.log"])
def test_trial_of_a_dead_process_is_retried(tmp_path, name):
    goes_on_after_a_kill(
        tmp_path, f"sqlite:///{tmp_path / name}" if name == "s.db" else str(tmp_path / name)
    )


def test_retries_killed_worker_ends_the_search_and_its_trial_is_retried(tmp_path):
    marker = tmp_path / "killed"

    def kill_once(trainer, state, control):
        if state.trial_name == "run-0" and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    search_trainer = searcher(tmp_path / "out", callbacks=[At("on_step_end", kill_once, step=2)])
    address = f"sqlite:///{tmp_path / 's.db'}"
    options = {"storage": address, "study_name": "s", "load_if_exists": True}
    with pytest.raises(BrokenProcessPool, match=r"n_jobs=2: a worker was killed.*retries"):
        search_trainer.hyperparameter_search(space, n_trials=4, n_jobs=2, **options)
    search_trainer.hyperparameter_search(space, n_trials=4, n_jobs=2, **options)
    assert 0 in retries.interrupted(search_trainer.study.trials)
    assert retries.failure_reasons(search_trainer.study.trials) == {}


KILLS_ITS_SEARCH = """
import os, signal, sys, time
import torch
from lightrainer import Trainer, TrainerCallback, TrainingArguments

folder, alive = sys.argv[1:]
os.open(alive, os.O_WRONLY)  # open as long as this process or a worker lives

class Model(torch.nn.Linear):
    def forward(self, x, labels):
        return {"loss": (super().forward(x) - labels).square().mean()}

class KillSearch(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.trial_name == "run-1":
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)

args = TrainingArguments(folder, max_steps=2, use_cpu=True, report_to="none", disable_tqdm=True)
data = [{"x": torch.ones(2), "labels": torch.ones(1)}] * 8
made = Trainer(None, args, train_dataset=data, eval_dataset=data, model_init=lambda: Model(2, 1), callbacks=[KillSearch()])
made.hyperparameter_search(lambda trial: {"seed": trial.suggest_int("seed", 0, 9)}, n_trials=4, n_jobs=2, storage=folder + ".log")
"""


def test_retries_workers_end_with_a_killed_search(tmp_path):
    os.mkfifo(tmp_path / "alive")
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    (tmp_path / "search.py").write_text(KILLS_ITS_SEARCH)
    arguments = str(tmp_path / "out"), str(tmp_path / "alive")
    log = tmp_path / "log"
    search = start([sys.executable, str(tmp_path / "search.py"), *arguments], log)
    assert code_of(search, log, 120) == -signal.SIGKILL, log.read_text()

    # The end of the pipe can be read when no process has it open for writing.
    ended, _, _ = select.select([reader], [], [], 60)
    os.close(reader)
    assert ended, "a worker outlived the search"


@pytest.mark.filterwarnings("ignore:Heartbeat of storage is supposed to be used")
def test_retries_leave_a_trial_of_a_living_process_alone(tmp_path):
    """Negative control."""
    storage = open_storage(str(tmp_path / "s.log"))
    study = optuna.create_study(study_name="s", storage=storage)
    retries.record_worker(study, study.ask())
    assert retries.retry_killed_trials(study) == []
    assert [trial.state.name for trial in study.trials] == ["RUNNING"]


def test_retries_of_a_trial_that_is_interrupted_as_it_starts(tmp_path, monkeypatch):
    def interrupted(study, trial):
        raise KeyboardInterrupt

    options = {"storage": str(tmp_path / "s.log"), "study_name": "s", "load_if_exists": True}
    trainer = searcher(tmp_path / "out")
    with monkeypatch.context() as early:
        early.setattr(retries, "record_worker", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trainer.hyperparameter_search(space, n_trials=1, **options)
    assert [trial.state.name for trial in trainer.study.trials] == ["FAIL", "WAITING"]


@pytest.mark.filterwarnings("ignore:Heartbeat of storage is supposed to be used")
@pytest.mark.parametrize("name", ["s.db", "s.log"])
def test_retries_of_a_trial_whose_process_was_killed_before_it_claimed_it(
    tmp_path, monkeypatch, name
):
    """The values to try first are tried; a trial of the user's own objective goes its way."""
    monkeypatch.setattr(retries, "SECONDS_TO_CLAIM", 0.2)
    address = f"sqlite:///{tmp_path / name}" if name == "s.db" else str(tmp_path / name)
    study = optuna.create_study(study_name="s", storage=open_storage(address))
    space(study.ask())
    study.enqueue_trial({"learning_rate": 0.025})
    study.ask()
    study.enqueue_trial({"learning_rate": 0.05})
    space(study.ask())
    retries.fail_and_retry(study, 2)
    study.ask()

    options = {"storage": address, "study_name": "s", "load_if_exists": True}
    trainer = searcher(tmp_path / "out")
    trainer.hyperparameter_search(space, n_trials=2, **options)
    trials = trainer.study.trials
    states = ["RUNNING", "FAIL", "FAIL", "FAIL", "COMPLETE", "COMPLETE"]
    assert [trial.state.name for trial in trials] == states
    assert [trial.params["learning_rate"] for trial in trials[4:]] == [0.025, 0.05]
    assert retries.interrupted(trials) == {1, 2, 3}


@pytest.mark.filterwarnings("ignore:Heartbeat of storage is supposed to be used")
def test_retries_of_the_last_point_of_a_grid(tmp_path):
    """The sampler must not stop a study that is not running."""
    sampler = optuna.samplers.GridSampler({"x": [1.0]})
    study = optuna.create_study(storage=open_storage(str(tmp_path / "s.log")), sampler=sampler)
    study.ask().suggest_float("x", 0, 2)
    assert retries.retry_killed_trials(study, seconds_to_claim=0) == [0]
    assert [trial.state.name for trial in study.trials] == ["FAIL", "WAITING"]


@pytest.mark.filterwarnings("ignore:Heartbeat of storage is supposed to be used")
def test_retries_database_has_a_heartbeat(tmp_path):
    storage = open_storage(f"sqlite:///{tmp_path / 's.db'}", heartbeat=7, max_retry=1)
    assert storage.get_heartbeat_interval() == 7
    callback = (
        getattr(storage, "get_heartbeat_stale_trial_callback", None)
        or storage.get_failed_trial_callback
    )
    assert callback() is not None
    study = optuna.create_study(storage=storage)
    for number in (0, 1):
        assert study.ask().number == number
        retries.fail_and_retry(study, number, max_retry=1)
    # The retry was given up too, and that was enough.
    assert [trial.state.name for trial in study.trials] == ["FAIL", "FAIL"]


def test_retries_close_connections_of_a_study(tmp_path):
    """A study wraps its database in a cache of optuna, whose private `_backend` it is."""
    study = optuna.create_study(storage=open_storage(f"sqlite:///{tmp_path / 's.db'}"))
    engine = study._storage._backend.engine
    pool = engine.pool
    disconnect(study._storage)
    assert engine.pool is not pool
