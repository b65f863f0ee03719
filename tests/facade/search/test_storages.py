"""The storages of searches: what optuna's own do not give."""

import threading

import optuna
import pytest
from optuna.storages._rdb.models import TrialModel
from optuna.trial import TrialState

from lightrainer.facade.search.storages import absolute_address, open_storage

TRIALS = 3


def start_two_trials(monkeypatch, storage):
    """Start a trial while another thread is between reading and writing the state of one; return
    the numbers of both trials.
    """
    study = optuna.create_study(storage=storage)
    for number in range(TRIALS):
        study.enqueue_trial({"width": number})
    numbers = []
    other = threading.Thread(target=lambda: numbers.append(study.ask().number))
    read = TrialModel.find_or_raise_by_id

    def read_and_let_the_other_go_first(*arguments, **options):
        trial = read(*arguments, **options)
        if trial.state is TrialState.WAITING and other.ident is None:
            other.start()
            # The other thread waits for the lock, so this ends without it.
            other.join(timeout=0.5)
        return trial

    monkeypatch.setattr(TrialModel, "find_or_raise_by_id", read_and_let_the_other_go_first)
    numbers.append(study.ask().number)
    other.join()
    return sorted(numbers)


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")
def test_queued_trial_is_started_once(monkeypatch, tmp_path):
    storage = open_storage(f"sqlite:///{tmp_path}/study.db")
    assert start_two_trials(monkeypatch, storage) == [0, 1]


def test_queued_trial_is_started_twice_in_a_storage_without_the_lock(monkeypatch, tmp_path):
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/study.db")
    assert start_two_trials(monkeypatch, storage) == [0, 0]


def test_journal_continues_after_a_write_that_failed(monkeypatch, tmp_path):
    """On a full disk the last line is incomplete."""
    monkeypatch.chdir(tmp_path)
    study = optuna.create_study(storage=open_storage("study.log"), study_name="mine")
    study.enqueue_trial({"width": 1})
    with open("study.log", "ab") as file:
        file.write(b'{"op_code":4,"work')
    for number in (2, 3):
        study = optuna.load_study(storage=open_storage("study.log"), study_name="mine")
        study.enqueue_trial({"width": number})
    study = optuna.load_study(storage=open_storage("study.log"), study_name="mine")
    params = [trial.system_attrs["fixed_params"]["width"] for trial in study.trials]
    assert params == [1, 2, 3]


def test_journal_lock_of_a_killed_process_is_released(monkeypatch, tmp_path):
    """Although the address is relative."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    storage = open_storage("runs/study.log")
    storage._backend._lock.acquire()
    link = next(path for path in (tmp_path / "runs").iterdir() if path.is_symlink())
    assert link.exists()


ADDRESSES = [
    ("study.log", "{folder}/study.log"),
    ("journal://a/study", "journal://{folder}/a/study"),
    ("sqlite:///study.db?timeout=3", "sqlite:///{folder}/study.db?timeout=3"),
    ("sqlite:////other/study.db", "sqlite:////other/study.db"),
    ("sqlite:///file:study.db?uri=true", "sqlite:///file:study.db?uri=true"),
    ("mysql+pymysql://user@host/name", "mysql+pymysql://user@host/name"),
]


@pytest.mark.parametrize(("address", "absolute"), ADDRESSES)
def test_absolute_address_names_the_same_storage(tmp_path, monkeypatch, address, absolute):
    monkeypatch.chdir(tmp_path)
    assert absolute_address(address) == absolute.format(folder=tmp_path)
