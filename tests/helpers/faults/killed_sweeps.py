"""Sweeps that are killed at random moments, each time followed by the same command: no value is
lost, nothing is left.

`kill_at_random` is for a test, and for `tests/faults/sweep_kills.py`. The sweeps are forked from this process, which has imported everything, so that a start takes no
time.
"""

import os
import random
import signal
import time
import traceback

import optuna
import psutil

from lightrainer.__main__ import main as lightrainer
from lightrainer.facade.search.storages import open_storage

POINTS = 8
SECONDS = 120
"""Time after which something hangs."""
SCRIPT = """
import json, os, subprocess, sys, time

trial = json.loads(os.environ["LIGHTRAINER_TRIAL"])
sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)", sys.argv[0]]
worker = subprocess.Popen(sleep, start_new_session=True)
time.sleep(0.3)
worker.kill()
worker.wait()
values = [[1, [float(trial["options"]["width"])], 1]]
with open(trial["result"] + ".new", "w") as file:
    json.dump({"values": values, "seen": ["loss"]}, file)
os.replace(trial["result"] + ".new", trial["result"])
raise SystemExit(0)
"""


def sweep(folder, storage):
    """Fork a sweep over all points; return its process."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.chdir(folder)
        with open("log.txt", "a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        words = [
            "--space",
            "space.yaml",
            "--sampler",
            "grid",
            "--metric",
            "loss",
            "--workers",
            "2",
        ]
        code = lightrainer(
            ["sweep", "script.py", *words, "--max-retry", "1000", "--storage", storage]
        )
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def left_over(folder):
    """Return the processes that a sweep has left behind."""
    script = str(folder / "script.py")
    processes = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        runs_here = script in words or ("script.py" in words and _is_in(process, folder))
        if runs_here and process.info["status"] != psutil.STATUS_ZOMBIE:
            processes.append(process)
    return processes


def _is_in(process, folder):
    try:
        return process.cwd() == str(folder)
    except psutil.Error:
        return False


def kill_at_random(folder, name, kills, seed):
    """Kill sweeps with a storage of this name; check everything after each kill, and at the end.

    Args:
        folder: is written to.
        name: of the storage, `study.db` or `study.log`.
        kills: number of kills; where a study is complete before that, another one begins.
        seed: of the moments.

    Returns:
        the number of trials that were interrupted.
    """
    draw = random.Random(seed)
    done = study = interrupted = 0
    while done < kills:
        study += 1
        place = folder / f"{name}-{study}"
        place.mkdir()
        (place / "script.py").write_text(SCRIPT)
        (place / "space.yaml").write_text(f"width: {list(range(POINTS))}")
        storage = name if name.endswith(".log") else f"sqlite:///{name}"
        status = None
        while status is None:
            pid = sweep(place, storage)
            if done < kills:
                wait_for_trial(pid, place, draw)
                time.sleep(draw.uniform(0, 0.8))
                os.kill(pid, signal.SIGKILL)
                done += 1
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if code == -signal.SIGKILL:
                wait_for_end_of_all(place)
            else:
                status = code
        assert status == 0, (place / "log.txt").read_text()[-4000:]
        interrupted += require_complete(place, storage)
    return interrupted


def wait_for_trial(pid, place, draw):
    """Wait until a trial of this sweep runs; in one of four cases do not, so that the sweep is
    killed as it starts.
    """
    end = time.monotonic() + SECONDS
    if draw.random() < 0.25:
        return
    while not left_over(place) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end, (place / "log.txt").read_text()[-4000:]
        time.sleep(0.05)


def wait_for_end_of_all(place):
    """Wait until the processes of a killed sweep are gone."""
    end = time.monotonic() + SECONDS
    while left := left_over(place):
        assert time.monotonic() < end, left
        time.sleep(0.02)


def require_complete(place, storage):
    """Check that each point has its value, once, and that no trial counts as running; return how
    many failed.
    """
    os.chdir(place)
    loaded = optuna.load_study(study_name="script", storage=open_storage(storage))
    trials = loaded.get_trials(deepcopy=False)
    complete = sorted(
        (trial.params["width"], trial.value) for trial in trials if trial.state.name == "COMPLETE"
    )
    assert complete == [(width, float(width)) for width in range(POINTS)], complete
    assert {trial.state.name for trial in trials} <= {"COMPLETE", "FAIL"}
    return sum(trial.state.name == "FAIL" for trial in trials)
