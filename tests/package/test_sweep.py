"""`python -m lightrainer sweep`: an unchanged script, many times, in parallel, stopped and resumed.

Unless stated otherwise, the Python that runs sweeps and trials is `starting.forked_python`.
"""

import csv
import json
import math
import re
import shlex
import signal
import sys
import time
from pathlib import Path

import optuna
import psutil
import pytest
import torch

from helpers import HELPERS
from helpers.processes.starting import code_of, forked_python, read_output, start
from lightrainer.__main__ import main
from lightrainer.facade.search.storages import open_storage
from lightrainer.tools.sweep import command as sweep_command

SCRIPT = HELPERS / "scripts" / "sweep_script.py"
SPACE = "learning_rate: {low: 1e-3, high: 1e-1, log: true}\nwidth: [4, 8]\n"
LOSS = ["--metric", "eval_loss"]
# after which it hangs: a trial takes about five, most of them imports, on a machine that is not
# busy
SECONDS = 600


@pytest.fixture(autouse=True)
def _quiet():
    before = optuna.logging.get_verbosity()
    yield
    optuna.logging.set_verbosity(before)


def command(folder, *words, python=sys.executable):
    (folder / "space.yaml").write_text(SPACE)
    script = [] if "--" in words else ["--"]
    sweep = [
        python,
        "-m",
        "lightrainer",
        "sweep",
        str(SCRIPT),
        "--space",
        str(folder / "space.yaml"),
    ]
    return [
        *sweep,
        "--folder",
        str(folder / "sweep"),
        "--seed",
        "1",
        *words,
        *script,
        "--out",
        str(folder / "out"),
    ]


def laid_out(folder, monkeypatch, script="", space=SPACE):
    """Be in a folder with a script and a space for `sweep`."""
    monkeypatch.chdir(folder)
    (folder / "script.py").write_text(script)
    (folder / "space.yaml").write_text(space)


def sweep(*words):
    return main(["sweep", "script.py", "--space", "space.yaml", *words])


def refused(capsys, *words):
    """The message of a sweep that ends before it writes anything."""
    before = sorted(Path.cwd().iterdir())
    with pytest.raises(SystemExit, match="2"):
        main(["sweep", *words, *([] if "--space" in words else ["--space", "space.yaml"])])
    assert sorted(Path.cwd().iterdir()) == before
    return capsys.readouterr().err


def begun(folder, *words, python=None):
    started = command(folder, *words, python=python or forked_python())
    return start(started, folder / "log.txt", PYTHONWARNINGS="ignore")


def here(folder, monkeypatch, *words):
    """The exit code of a sweep in this process, where it is about the trials, which are
    processes as ever.
    """
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sys, "executable", forked_python())
    return main(command(folder, *words)[3:])


def ended(process, folder):
    log = folder / "log.txt"
    return code_of(process, log, SECONDS), read_output(log)


def study_of(folder, name="sweep_script"):
    return optuna.load_study(study_name=name, storage=f"sqlite:///{folder / 'sweep' / 'study.db'}")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Three trials by two workers, of which the last is pruned for being worse than the median."""
    folder = tmp_path_factory.mktemp("sweep")
    words = [
        "--n-trials",
        "3",
        "--workers",
        "2",
        "--pruner",
        "median:n_startup_trials=1",
    ]
    code, output = ended(begun(folder, *words), folder)
    assert code == 0, output
    return folder, output


def test_sweep_script_runs_with_the_values_of_each_trial(done):
    """Training arguments take them up whatever the script passes; what is none is an option of
    the script.
    """
    folder, _ = done
    trials = study_of(folder).trials
    assert len(trials) == 3
    for trial in trials:
        log = (folder / "sweep" / f"run-{trial.number}.log").read_text()
        rate, width = trial.params["learning_rate"], trial.params["width"]
        assert f"rate {rate} width {width}" in log
        steps = len(re.findall("^step ", log, re.MULTILINE))
        assert list(trial.intermediate_values) == [*range(1, steps + 1)]
        if trial.state.name == "COMPLETE":
            assert trial.value == trial.intermediate_values[4]
            assert (folder / "out" / f"run-{trial.number}" / "checkpoint-4").is_dir()
        else:
            assert trial.state.name == "PRUNED"


def test_sweep_script_in_two_processes(tmp_path, monkeypatch):
    """Both stop at the step at which the trial is pruned: the one before, which is made up, was
    better.
    """
    (tmp_path / "sweep").mkdir()
    study = optuna.create_study(
        study_name="sweep_script", storage=f"sqlite:///{tmp_path / 'sweep' / 'study.db'}"
    )
    study.add_trial(optuna.trial.create_trial(value=0.1, intermediate_values={1: 0.1, 2: 0.1}))
    launcher = f"{forked_python()} -m torch.distributed.run --nproc_per_node=2 --rdzv-backend=c10d "
    words = [
        "--launcher",
        launcher + "--rdzv-endpoint=localhost:0",
        "--pruner",
        "median:n_startup_trials=1",
    ]
    assert here(tmp_path, monkeypatch, *LOSS, "--n-trials", "2", *words) == 0
    _, pruned = study_of(tmp_path).trials
    assert pruned.state.name == "PRUNED"
    assert list(pruned.intermediate_values) == [1]
    log = (tmp_path / "sweep" / "run-1.log").read_text()
    assert log.count("This trial is pruned at step 1") == 2
    assert log.count("step 1\n") == 2
    assert "step 2\n" not in log


def test_sweep_reports_the_best_trial(done):
    folder, output = done
    study = study_of(folder)
    best = study.best_trial
    assert f"best: run-{best.number}, eval_loss = {best.value} (minimize eval_loss)" in output
    assert f"  folder: {folder / 'out' / f'run-{best.number}'}\n" in output
    assert f"Best trial: {best.number}. Best value: {best.value:.6g}" in output  # in the bar
    assert "width is not a training argument. The script gets it as --width." in output
    page = (folder / "sweep" / "report.html").read_text()
    assert "minimize eval_loss" in page
    assert not re.search(r"""<(script|link|img)[^>]* (src|href)=""", page)
    with (folder / "sweep" / "trials.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert len(rows) == 3
    assert rows[best.number]["log"] == str(folder / "sweep" / f"run-{best.number}.log")


def test_sweep_trial_of_a_killed_process_resumes(tmp_path, monkeypatch, capsys):
    assert (
        here(
            tmp_path,
            monkeypatch,
            *LOSS,
            "--n-trials",
            "1",
            "--",
            "--kill",
            str(tmp_path / "killed"),
        )
        == 0
    )
    output = "".join(capsys.readouterr())
    first, second = study_of(tmp_path).trials
    assert (first.state.name, second.state.name) == ("FAIL", "COMPLETE")
    assert first.params == second.params
    log = (tmp_path / "sweep" / "run-0.log").read_text()
    # A thread may still be writing the checkpoints of the last steps when the process is killed.
    steps = "".join(re.findall("^step (.)", log, re.MULTILINE))
    assert steps in ("12334", "123234")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run-0"]
    # The best trial is number 1, and its files are those of number 0.
    assert f"best: run-0, eval_loss = {second.value}" in output
    with (tmp_path / "sweep" / "trials.csv").open() as table:
        first_row, second_row = csv.DictReader(table)
    assert (first_row["state"], second_row["state"]) == ("INTERRUPTED", "COMPLETE")
    assert second_row["folder"] == str(tmp_path / "out" / "run-0")
    assert second_row["log"] == str(tmp_path / "sweep" / "run-0.log")
    assert second_row["command"] == second.user_attrs["lightrainer:command"]


def test_sweep_resumes_after_a_stop_or_a_kill(tmp_path):
    """In the middle of a trial; the processes of a real one end with it, however it ends."""
    words = [
        *LOSS,
        "--n-trials",
        "1",
        "--storage",
        str(tmp_path / "journal.log"),
        "--",
        "--slow",
        "1",
    ]

    process = begun(tmp_path, *words)
    until((tmp_path / "out" / "run-0" / "checkpoint-1").is_dir, tmp_path)
    process.send_signal(signal.SIGINT)
    code, output = ended(process, tmp_path)
    assert code == 130, output
    assert "The same command resumes the sweep." in output

    process = begun(tmp_path, *words, python=sys.executable)
    until((tmp_path / "out" / "run-0" / "checkpoint-3").is_dir, tmp_path)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.kill()
    process.wait()
    until(
        lambda: not any(child.is_running() and child.status() != "zombie" for child in children),
        tmp_path,
    )

    code, output = ended(begun(tmp_path, *words), tmp_path)
    assert code == 0, output
    assert "Trial 1 did not finish; retrying it." in output
    steps = re.findall("^step (.)", (tmp_path / "sweep" / "run-0.log").read_text(), re.MULTILINE)
    assert sorted({*steps}) == ["1", "2", "3", "4"]
    assert len(steps) <= 6  # continued, not started from the beginning
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run-0"]
    study = optuna.load_study(
        study_name="sweep_script", storage=open_storage(str(tmp_path / "journal.log"))
    )
    assert [trial.state.name for trial in study.trials] == ["FAIL", "FAIL", "COMPLETE"]
    assert list(study.trials[2].intermediate_values) == [1, 2, 3, 4]


def until(condition, folder):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, (folder / "log.txt").read_text()[-4000:]
        time.sleep(0.1)


def test_sweep_ends_when_a_script_always_fails(tmp_path, capsys, monkeypatch):
    laid_out(tmp_path, monkeypatch, "raise SystemExit('nothing works')\n", "seed: [1, 2]\n")
    assert sweep("--n-trials", "9", *LOSS) == 1
    output = capsys.readouterr().err
    assert "3 trials failed and none completed" in output
    assert "The last error: exit code 1: nothing works" in output
    assert (tmp_path / "sweeps" / "script" / "run-2.log").exists()


WORDS = [
    (["script.py", "--n-trails", "3"], "--n-trails. Did you mean '--n-trials'"),
    (["script.py", "--space", "nowhere.yaml"], "nowhere.yaml"),
    (["script.py", "--space", "wrong.yaml"], "'cosine'"),
    (["script.py", "--n-trials", "0"], "--n-trials: '0' has to be at least 1"),
    (["script.py", "--folder", "s3://bucket/x"], "--folder='s3://bucket/x'"),
    (
        ["script.py", "--metric", "a", "--metric", "b", "--direction", "maximize"],
        "2 --metric and 1 --direction",
    ),
    (
        ["script.py", "--metric", "loss", "--metric", "f1", "--pruner", "median"],
        "needs a single --metric",
    ),
    (["script.py", "--pruner", "medain"], "'median'"),
    (["script.py", "--metric", "score"], "Pass --direction minimize or --direction maximize"),
    (["script.py", "--launcher", "no-such-program -x"], "'no-such-program'"),
    (
        ["script.py", "--workers", "2", "--gpus-per-trial", "2"],
        "needs 4 GPUs, but only 3",
    ),
]


@pytest.mark.parametrize(("words", "match"), WORDS)
def test_sweep_that_cannot_be_is_refused_before_anything_is_written(
    tmp_path, capsys, monkeypatch, words, match
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7")
    laid_out(tmp_path, monkeypatch)
    (tmp_path / "wrong.yaml").write_text("lr_scheduler_type: [linear, cosin]")
    assert match in refused(capsys, *words)


SAYS_ITS_WORDS = """
import json, os, sys
trial = json.loads(os.environ["LIGHTRAINER_TRIAL"])
print(trial["run_name"], trial["values"], sys.argv[1:])
open(trial["result"], "w").write('{"values": [[1, [0.5], 1]], "seen": ["eval_loss"]}')
"""


def test_how_values_reach_the_script(tmp_path, monkeypatch):
    """Of a grid each point is tried once, and flags are there or not."""
    space = "fast: {type: flag}\nwidth: 8\nshift: -1e-5\nnone: [null]\nseed: 3\n"
    space += "freeze: {type: flag}"
    laid_out(tmp_path, monkeypatch, SAYS_ITS_WORDS, space)
    for _ in range(2):
        assert sweep("--sampler", "grid", "--metric", "loss", "--", "out") == 0
    logs = sorted((tmp_path / "sweeps" / "script").glob("*.log"))
    assert [log.read_text().partition(" ")[0] for log in logs] == [
        "run-0",
        "run-1",
        "run-2",
        "run-3",
    ]
    words = ["out", "--fast", "--width=8", "--shift=-1e-05", "--freeze"]
    assert logs[3].read_text() == f"run-3 {{'seed': 3}} {words}\n"
    assert "--f" not in logs[0].read_text()


EVALUATES = """
import json, os, sys
trial = json.loads(os.environ["LIGHTRAINER_TRIAL"])
values = json.loads(sys.argv[1])[trial["number"]]
if isinstance(values, str):
    raise ArithmeticError(values)
found = {"values": values, "seen": ["eval_loss"]}
open(trial["result"], "w").write(json.dumps(found))
"""


def evaluating(
    folder,
    monkeypatch,
    *words,
    values,
    script=EVALUATES,
    space="width: {low: 1, high: 1000000000}",
):
    """The exit code of a sweep whose trials have these evaluations: step, values, and number of
    the training.
    """
    laid_out(folder, monkeypatch, script, space)
    return sweep(*LOSS, *words, "--", json.dumps(values))


def study_of_script():
    return optuna.load_study(study_name="script", storage="sqlite:///sweeps/script/study.db")


def test_sweep_counts_one_training_of_a_script(tmp_path, monkeypatch):
    trained = [[0, [9.0], 0], [1, [0.1], 1], [2, [0.2], 1], [1, [0.8], 2], [2, [0.7], 2]]
    assert evaluating(tmp_path, monkeypatch, "--n-trials", "1", values=[trained]) == 0
    (trial,) = study_of_script().trials
    assert (trial.value, trial.intermediate_values) == (0.7, {1: 0.8, 2: 0.7})


def test_failed_trials_are_named_with_their_reasons(tmp_path, monkeypatch, capsys):
    values = ["boom", [[1, [math.nan], 1]], [[1, [0.5], 1]]]
    assert evaluating(tmp_path, monkeypatch, "--n-trials", "3", values=values) == 0
    output = capsys.readouterr()
    reasons = ["exit code 1: ArithmeticError: boom", "eval_loss is nan"]
    for number, reason in enumerate(reasons):
        assert f"run-{number} failed: {reason}" in output.err
        assert f"trial {number}: {reason}" in output.out
    with (tmp_path / "sweeps" / "script" / "trials.csv").open() as file:
        assert [row["failure"] for row in csv.DictReader(file)] == [*reasons, ""]


def test_failure_of_a_script_is_its_last_line_with_words(tmp_path, monkeypatch, capsys):
    """Command lines of rich draw a frame around their errors."""
    script = "import sys\nprint('+-- Error --+\\n| no option --x |\\n+-----------+')\nsys.exit(2)"
    laid_out(tmp_path, monkeypatch, script, "seed: [1]\n")
    assert sweep("--n-trials", "1", *LOSS) == 1
    assert "run-0 failed: exit code 2: | no option --x |." in capsys.readouterr().err


def test_sweep_script_that_changes_its_directory_finds_the_storage(tmp_path, monkeypatch):
    script = f"{EVALUATES}\nprint(trial['storage'])"
    words = ["--n-trials", "1", "--storage", "study.log"]
    values = [[[1, [0.5], 1]]]
    assert evaluating(tmp_path, monkeypatch, *words, values=values, script=script) == 0
    assert (tmp_path / "sweeps" / "script" / "run-0.log").read_text() == f"{tmp_path}/study.log\n"


def test_sweep_best_command_reproduces_its_value(tmp_path, monkeypatch, capsys):
    script = (
        "import json, os, sys\ntrial = json.loads(os.environ['LIGHTRAINER_TRIAL'])\n"
        "value = trial['values']['learning_rate'] + trial['options']['width']\n"
        "value += 7 * (('--fast' in sys.argv) + any('True' in word for word in sys.argv))\n"
        "found = {'values': [[1, [value], 1]], 'seen': ['eval_loss']}\n"
        "open(trial['result'], 'w').write(json.dumps(found))\n"
    )
    space = (
        "learning_rate: {low: 0.1, high: 0.9}\nwidth: {low: 1, high: 99}\nseed: 7\n"
        "fast: {type: flag}\nnone: [null]"
    )
    laid_out(tmp_path, monkeypatch, script, space)
    assert sweep("--n-trials", "3", *LOSS, "--", "a b") == 0
    best = study_of_script().best_trial
    (command,) = re.findall("once more: lightrainer (.*)", capsys.readouterr().out)
    assert main(shlex.split(command)) == 0
    assert f"eval_loss = {best.value} " in capsys.readouterr().out


def test_sweep_failures_do_not_count_in_the_next_start(tmp_path, monkeypatch, capsys):
    values = ["broken", "broken", *[[[1, [0.5], 1]]] * 4]
    assert (
        evaluating(tmp_path, monkeypatch, "--n-trials", "4", "--max-failures", "2", values=values)
        == 1
    )
    assert "2 trials failed and none completed" in capsys.readouterr().err
    for _ in range(2):
        assert evaluating(tmp_path, monkeypatch, "--n-trials", "4", values=values) == 0
    trials = study_of_script().trials
    assert [trial.state.name for trial in trials] == ["FAIL"] * 2 + ["COMPLETE"] * 4


def test_sweep_storage_that_is_invalid_or_unreachable(tmp_path, capsys, monkeypatch):
    laid_out(tmp_path, monkeypatch)
    (tmp_path / "notes.log").write_text("garbage")
    for storage, message in (
        ("notes.log", "storage='notes.log'"),
        ("sqlite:////no/such/folder/s.db", "cannot be reached"),
    ):
        assert sweep("--storage", storage, *LOSS) == 1
        (line,) = [
            line
            for line in capsys.readouterr().err.splitlines()
            if line.startswith("lightrainer sweep")
        ]
        assert message in line
    assert (tmp_path / "notes.log").read_text() == "garbage"
    assert not (tmp_path / "sweeps").exists()


HAS_ITS_METRIC = SCRIPT.read_text().replace(
    "arguments = TrainingArguments(",
    """
settings |= {"metric_for_best_model": "runtime"}
arguments = TrainingArguments(""",
)


@pytest.mark.parametrize(("words", "code"), [([], 1), (LOSS, 0)], ids=["implied", "passed"])
def test_sweep_asks_which_metric_is_meant(tmp_path, monkeypatch, capsys, words, code):
    monkeypatch.setattr(sys, "executable", forked_python())
    laid_out(tmp_path, monkeypatch, HAS_ITS_METRIC, "seed: [1]")
    assert sweep("--sampler", "grid", *words) == code
    output = capsys.readouterr()
    message = "The script has metric_for_best_model='runtime', but the sweep minimizes eval_loss."
    assert (message in output.err) == bool(code)
    assert ("best: run-0" in output.out) != bool(code)


def planned(folder, monkeypatch, *words):
    """Return the plan of a command line."""
    laid_out(folder, monkeypatch, space="seed: [4, 8]")
    plans = []
    monkeypatch.setattr(sweep_command, "_run", lambda plan: plans.append(plan) or 0)
    assert sweep(*words) == 0
    return plans[0]


WORDS_AND_VISIBLES = [
    (["--workers", "2"], "5,GPU-b,7", ["5", "GPU-b"]),
    (["--workers", "3"], "5,GPU-b,-1,7", ["5", "GPU-b", "5"]),
    (["--workers", "2"], None, ["0", "1"]),
    (["--gpus-per-trial", "2"], "5,6,7", ["5,6"]),
    (["--workers", "2", "--gpus-per-trial", "2"], "5, 6, 7, 8", ["5,6", "7,8"]),
]


@pytest.mark.parametrize(("words", "visible", "shares"), WORDS_AND_VISIBLES)
def test_workers_share_out_the_gpus(tmp_path, monkeypatch, words, visible, shares):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert planned(tmp_path, monkeypatch, *words).gpus == shares


SAYS_ITS_GPUS = """
import glob, time
print(os.environ["CUDA_VISIBLE_DEVICES"])
while len(glob.glob(os.path.dirname(trial["result"]) + "/run-*.json")) < 2:
    time.sleep(0.01)
"""


def test_sweep_script_sees_the_gpus_of_its_worker(tmp_path, monkeypatch, capsys):
    """Each trial waits for the other, so that each worker runs one; the command of the best has
    as many GPUs.
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,GPU-c,8")
    options = {"values": [[[1, [0.5], 1]], [[1, [0.4], 1]]], "script": EVALUATES + SAYS_ITS_GPUS}
    words = ["--workers", "2", "--n-trials", "2", "--gpus-per-trial", "2"]
    assert evaluating(tmp_path, monkeypatch, *words, **options) == 0
    logs = sorted((tmp_path / "sweeps" / "script").glob("run-*.log"))
    assert sorted(log.read_text() for log in logs) == ["5,6\n", "GPU-c,8\n"]
    assert re.search("once more: .* --gpus-per-trial 2 ", capsys.readouterr().out)
