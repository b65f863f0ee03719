"""A study that several processes make at once, and one that another search has begun."""

import multiprocessing

import pytest

from lightrainer.facade.search.optuna_backend import make_study

PROCESSES, ROUNDS = 3, 4


def _join_each(folder, barrier, failed):
    for number in range(ROUNDS):
        barrier.wait(60)
        try:
            given = {"storage": f"sqlite:///{folder / f'{number}.db'}", "study_name": "mine", "load_if_exists": True}
            study = make_study(["minimize"], given, ["eval_loss"])
            study.enqueue_trial({"x": 0.5})
        except Exception as error:
            failed.put(f"{number}: {type(error).__name__}: {error}")


def test_processes_that_start_at_once_share_a_fresh_study(tmp_path):
    context = multiprocessing.get_context("fork")
    failed, barrier = context.SimpleQueue(), context.Barrier(PROCESSES)
    processes = [context.Process(target=_join_each, args=(tmp_path, barrier, failed)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert failed.empty(), failed.get()
    for number in range(ROUNDS):
        given = {"storage": f"sqlite:///{tmp_path / f'{number}.db'}", "study_name": "mine", "load_if_exists": True}
        study = make_study(["minimize"], given)
        assert len(study.trials) == PROCESSES
        assert study.metric_names == ["eval_loss"]


@pytest.mark.parametrize(
    ("metrics", "other"), [(["mae"], True), (["loss"], False), (["eval_loss"], False), ([], False)]
)
def test_a_study_keeps_its_metric(tmp_path, metrics, other):
    given = {"storage": f"sqlite:///{tmp_path / 'study.db'}", "study_name": "mine", "load_if_exists": True}
    make_study(["minimize"], given, ["eval_loss"])
    if other:
        with pytest.raises(ValueError, match=r"eval_loss.*mae"):
            make_study(["minimize"], given, metrics)
    else:
        assert make_study(["minimize"], given, metrics).metric_names == ["eval_loss"]
