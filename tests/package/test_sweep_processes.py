"""The processes of a sweep: which signals end them, what is retried, and what is left."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import optuna
import pytest

from helpers.processes.waiting import SECONDS, lives, until
from lightrainer.__main__ import main
from lightrainer.facade.search import retries
from lightrainer.facade.search.storages import open_storage
from lightrainer.tools import watchdog
from lightrainer.tools.sweep import workers

SPACE = "width: {low: 1, high: 1000000000}"


@pytest.fixture(autouse=True)
def _quiet():
    before = optuna.logging.get_verbosity()
    yield
    optuna.logging.set_verbosity(before)


def kept(folder, code):
    """Start a shell under a watchdog; it may write to `pids`."""
    words = [
        sys.executable,
        "-I",
        "-S",
        watchdog.__file__,
        "0",
        "",
        "bash",
        "-c",
        textwrap.dedent(code),
    ]
    return subprocess.Popen(words, cwd=folder, stdin=subprocess.PIPE, start_new_session=True)


TREE = """
    setsid sleep 600 & echo $! >> pids
    (sleep 600 & echo $! >> pids; wait) &
    echo done >> pids
    wait
"""


@pytest.mark.parametrize("end", ["pipe", "SIGTERM"])
def test_watchdog_ends_all_that_a_script_started(tmp_path, end):
    """The pipe is closed when the sweep is killed; SIGTERM is passed on by a sweep that is
    stopped.
    """
    process = kept(tmp_path, TREE)
    pids = tmp_path / "pids"
    until(
        lambda: pids.exists() and "done" in pids.read_text() and len(pids.read_text().split()) == 3
    )
    started = [int(word) for word in pids.read_text().split() if word != "done"]
    process.stdin.close() if end == "pipe" else process.terminate()
    assert process.wait(SECONDS) == 128 + (signal.SIGKILL if end == "pipe" else signal.SIGTERM)
    assert not any(lives(pid) for pid in started)
    process.stdin.close()


SAVES = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: [open("saved", "w"), sys.exit()])
open("on", "w")
time.sleep(600)
"""


def test_watchdog_lets_the_script_behind_a_launcher_save(tmp_path):
    """The shell dies of SIGTERM at once; the script that it waited for gets the signal too."""
    (tmp_path / "saves.py").write_text(SAVES)
    process = kept(tmp_path, f"{sys.executable} -S saves.py; true")
    until((tmp_path / "on").exists)
    process.terminate()
    process.wait(SECONDS)
    assert (tmp_path / "saved").exists()
    process.stdin.close()


WITHOUT_PROC = """
import runpy, sys
names = runpy.run_path(sys.argv[1])
wait = names["_wait"]
wait.__globals__["_children"] = list
sys.exit(names["main"](0, "", sys.argv[2:]))
"""


def test_watchdog_without_proc_signals_the_process_group(tmp_path):
    """As on macOS: a script that its launcher does not signal gets the signal too."""
    (tmp_path / "saves.py").write_text(SAVES)
    shell = f"trap '' TERM; {sys.executable} -S saves.py; true"
    words = [sys.executable, "-c", WITHOUT_PROC, watchdog.__file__, "bash", "-c", shell]
    process = subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, start_new_session=True)
    until((tmp_path / "on").exists)
    process.terminate()
    process.wait(SECONDS)
    assert (tmp_path / "saved").exists()
    process.stdin.close()


@pytest.mark.parametrize(
    ("code", "status"), [("exit 3", 3), ("kill -SEGV $$", 128 + signal.SIGSEGV), ("true", 0)]
)
def test_watchdog_exits_as_the_script(tmp_path, code, status):
    process = kept(tmp_path, code)
    assert process.wait(SECONDS) == status
    process.stdin.close()


def sweep(folder, monkeypatch, script, *words):
    monkeypatch.chdir(folder)
    (folder / "script.py").write_text(script)
    (folder / "space.yaml").write_text(SPACE)
    return main(["sweep", "script.py", "--space", "space.yaml", "--metric", "loss", *words])


def study_of(folder):
    return optuna.load_study(
        study_name="script", storage=f"sqlite:///{folder}/sweeps/script/study.db"
    )


@pytest.mark.parametrize(
    ("number", "starts", "message"),
    [(signal.SIGSEGV, 2, "SIGSEGV"), (signal.SIGKILL, 4, "its process was killed 2 times")],
)
def test_sweep_retries_a_killed_script_but_not_a_crashed_one(
    tmp_path, monkeypatch, capsys, number, starts, message
):
    """Both are failures in the end, of which two are allowed."""
    script = f"import os; open('starts', 'a').write('x'); os.kill(os.getpid(), {int(number)})"
    words = ["--max-failures", "2", "--max-retry", "1", "--n-trials", "9"]
    assert sweep(tmp_path, monkeypatch, script, *words) == 1
    assert len((tmp_path / "starts").read_text()) == starts
    error = capsys.readouterr().err
    assert "2 trials failed and none completed" in error
    assert f"The last error: {message}" in error


EVALUATES = """
import json, os
trial = json.loads(os.environ["LIGHTRAINER_TRIAL"])
open(trial["result"], "w").write(json.dumps({"values": [[1, [0.5], 1]], "seen": ["loss"]}))
"""
FIRST_HANGS = """
import json, os, time
number = json.loads(os.environ["LIGHTRAINER_TRIAL"])["number"]
open(f"begun-{number}", "w").close()
if number == 0:
    time.sleep(600)
"""


HANGUP = "import os, signal; os.kill(int(os.environ['SWEEP']), signal.SIGHUP)\n"


@pytest.mark.parametrize("is_ignored", [False, True])
def test_sweep_hangup_interrupts_unless_nohup(tmp_path, monkeypatch, is_ignored):
    monkeypatch.setenv("SWEEP", str(os.getpid()))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    try:
        script = HANGUP + (EVALUATES if is_ignored else FIRST_HANGS)
        assert sweep(tmp_path, monkeypatch, script, "--n-trials", "1") == (0 if is_ignored else 130)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.filterwarnings("ignore:Heartbeat of storage is supposed to be used")
def test_sweep_trial_of_another_machine_needs_a_stale_heartbeat(tmp_path, monkeypatch):
    """Two containers have one host name: the processes of the other one cannot be seen."""
    storage = open_storage(f"sqlite:///{tmp_path / 'study.db'}", heartbeat=1)
    study = optuna.create_study(storage=storage, study_name="s")
    trials = [study.ask(), study.ask()]
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(
            "lightrainer.lightning_modules.common.process_identity._machine", lambda: "elsewhere"
        )
        for trial in trials:
            storage.record_heartbeat(trial._trial_id)
            retries.record_worker(study, trial)
    assert retries.retry_killed_trials(study) == []
    assert retries.possibly_killed_trials(study) == [0, 1]

    def stale():
        storage.record_heartbeat(trials[1]._trial_id)
        return retries.retry_killed_trials(study)

    until(lambda: stale() == [0])
    assert [trial.state.name for trial in study.trials] == ["FAIL", "RUNNING", "WAITING"]


@pytest.mark.filterwarnings("ignore:Heartbeat of storage is supposed to be used")
def test_sweep_in_a_journal_names_trials_that_another_machine_has_not_ended(
    tmp_path, monkeypatch, capsys
):
    """A journal has no heartbeats, so no process can know whether that machine is lost."""
    monkeypatch.setattr(retries, "SECONDS_TO_CLAIM", 0.5)
    monkeypatch.setattr(workers, "_POLL_SECONDS", 0.1)
    path = str(tmp_path / "study.log")
    study = optuna.create_study(storage=open_storage(path), study_name="s")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(
            "lightrainer.lightning_modules.common.process_identity._machine", lambda: "elsewhere"
        )
        retries.record_worker(study, study.ask())
    words = ["--storage", path, "--study-name", "s", "--heartbeat", "0.1", "--n-trials", "2"]
    assert sweep(tmp_path, monkeypatch, EVALUATES, *words) == 0
    assert "Trials [0] are still running elsewhere" in capsys.readouterr().err
    study = optuna.load_study(storage=open_storage(path), study_name="s")
    states = [trial.state.name for trial in study.trials]
    assert states == ["RUNNING", "COMPLETE"]


def test_sweep_trial_given_up_by_a_killed_process_is_queued(tmp_path, monkeypatch):
    study = optuna.create_study(storage=open_storage(str(tmp_path / "study.log")), study_name="s")

    def killed(trial):
        ended = subprocess.run(
            [sys.executable, "-S", "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE
        )
        with monkeypatch.context() as of_another:
            of_another.setattr(os, "getpid", lambda: int(ended.stdout))
            retries.record_worker(study, trial)
        raise ArithmeticError

    study.optimize(killed, n_trials=1, catch=ArithmeticError)
    assert retries.retry_killed_trials(study) == [0]
    assert retries.retry_killed_trials(study) == []
    assert [trial.state.name for trial in study.trials] == ["FAIL", "WAITING"]


@pytest.mark.filterwarnings("ignore:Heartbeat of storage is supposed to be used")
@pytest.mark.parametrize(("seconds", "states"), [(0.0, ["FAIL", "WAITING"]), (600.0, ["RUNNING"])])
def test_retry_killed_trials_queues_a_trial_that_no_process_has_claimed_in_time(
    tmp_path, seconds, states
):
    study = optuna.create_study(storage=open_storage(str(tmp_path / "study.log")), study_name="s")
    study.ask()
    retries.retry_killed_trials(study, seconds_to_claim=seconds)
    assert [trial.state.name for trial in study.trials] == states


def test_sweep_with_a_seed_draws_the_same_values_for_any_number_of_workers(tmp_path, monkeypatch):
    values = []
    for count in ("1", "2"):
        words = [
            "--sampler",
            "random",
            "--seed",
            "3",
            "--n-trials",
            "4",
            "--workers",
            count,
            "--study-name",
            count,
        ]
        assert sweep(tmp_path, monkeypatch, EVALUATES, *words) == 0
        study = optuna.load_study(study_name=count, storage=f"sqlite:///sweeps/{count}/study.db")
        values.append({trial.params["width"] for trial in study.trials})
    assert values[0] == values[1]
    assert len(values[0]) == 4


def test_sweep_over_a_grid_tries_each_point_where_another_sweep_has_queued_one_too(
    tmp_path, monkeypatch
):
    """Both queue the points that they do not find, so that one may be there twice."""
    monkeypatch.setattr(sys.modules[__name__], "SPACE", "width: [1, 2, 3]")
    (tmp_path / "sweeps" / "script").mkdir(parents=True)
    study = optuna.create_study(
        study_name="script", storage=f"sqlite:///{tmp_path}/sweeps/script/study.db"
    )
    for _ in range(2):
        study.enqueue_trial({"width": 1})
    assert sweep(tmp_path, monkeypatch, EVALUATES, "--sampler", "grid") == 0
    assert [(trial.params["width"], trial.state.name) for trial in study_of(tmp_path).trials] == [
        (width, "COMPLETE") for width in (1, 1, 2, 3)
    ]


LOCKS = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def test_sweep_lets_no_other_process_queue_points_while_it_does(tmp_path, monkeypatch):
    def is_locked():
        words = [sys.executable, "-S", "-c", LOCKS, "sweeps/script/queue.lock"]
        return subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode != 0

    locked_while_queueing = []
    enqueue_trial = optuna.Study.enqueue_trial

    def observed_enqueue(study, point, **options):
        locked_while_queueing.append(is_locked())
        enqueue_trial(study, point, **options)

    monkeypatch.setattr(optuna.Study, "enqueue_trial", observed_enqueue)
    monkeypatch.setattr(sys.modules[__name__], "SPACE", "width: [1, 2]")
    assert sweep(tmp_path, monkeypatch, EVALUATES, "--sampler", "grid") == 0
    assert locked_while_queueing == [True, True]
    assert not is_locked()


def test_sweep_studies_have_separate_folders(tmp_path, monkeypatch):
    script = EVALUATES + "\nfrom lightrainer import TrainingArguments\nTrainingArguments('out')\n"
    for name in ("a", "b"):
        words = ["--study-name", name, "--folder", "logs"]
        assert sweep(tmp_path, monkeypatch, script, "--n-trials", "1", *words) == 0
    assert sorted(path.name for path in Path("out").iterdir()) == ["run-0", "run-0-2"]
    assert sorted(path.name for path in Path("logs").glob("*.log")) == ["run-0-2.log", "run-0.log"]


def test_trials_that_all_have_the_same_value_are_warned_of(tmp_path, monkeypatch, capsys):
    assert sweep(tmp_path, monkeypatch, EVALUATES, "--n-trials", "2") == 0
    assert "All trials have the same value. Does the script read width?" in capsys.readouterr().err
