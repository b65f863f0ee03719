"""A study that several processes make at once, and one that another search has begun."""

import multiprocessing
import os
import signal

import optuna
import pytest
from sqlalchemy import Engine, event

from lightrainer.facade.search.optuna_backend import make_study

PROCESSES, ROUNDS = 3, 4


def study_in(folder, name, *metrics):
    options = {
        "storage": f"sqlite:///{folder / name}.db",
        "study_name": "mine",
        "load_if_exists": True,
    }
    return make_study(["minimize"], options, *metrics)


def _join_each(folder, barrier):
    for number in range(ROUNDS):
        barrier.wait(60)
        study_in(folder, str(number), ["eval_loss"]).enqueue_trial({"x": 0.5})


def test_processes_that_start_at_once_share_a_fresh_study(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(PROCESSES)
    processes = [
        context.Process(target=_join_each, args=(tmp_path, barrier)) for _ in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    for number in range(ROUNDS):
        study = study_in(tmp_path, str(number))
        assert len(study.trials) == PROCESSES
        assert study.metric_names == ["eval_loss"]


def _create_until_killed(folder):
    def kill(connection, cursor, statement, *_):
        if "CREATE TABLE studies" in statement:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "after_cursor_execute", kill)
    study_in(folder, "study", ["eval_loss"])


def test_study_has_one_name_after_its_first_process_was_killed(tmp_path):
    process = multiprocessing.get_context("fork").Process(
        target=_create_until_killed, args=(tmp_path,)
    )
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    for _ in range(2):
        study_in(tmp_path, "study", ["eval_loss"]).enqueue_trial({"x": 0.5})
    summaries = optuna.get_all_study_summaries(f"sqlite:///{tmp_path / 'study'}.db")
    assert [summary.n_trials for summary in summaries] == [2]


def test_study_keeps_its_metric(tmp_path):
    study_in(tmp_path, "study", ["eval_loss"])
    with pytest.raises(ValueError, match=r"eval_loss.*mae"):
        study_in(tmp_path, "study", ["mae"])
    for metrics in (["loss"], []):
        assert study_in(tmp_path, "study", metrics).metric_names == ["eval_loss"]
