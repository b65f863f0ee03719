"""`enable_jit_checkpoint`: a training that is asked to end is one that can go on. Real signals to real processes."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from sigterm_trainer import SCENARIOS
from tiny import At, Tiny, points, told, trainer

from lightrainer import get_last_checkpoint
from lightrainer.callbacks import JITCheckpointCallback

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the trainings are forked, or get signals of POSIX")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """One process forks all the trainings, since importing takes longer than training."""
    done = subprocess.run(
        [sys.executable, str(HERE / "sigterm_trainer.py"), str(tmp_path_factory.mktemp("signals"))],
        capture_output=True,
        text=True,
        timeout=300,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_stopped_training_goes_on_to_the_same_bits(reports, name):
    """It exits with 143, leaves a checkpoint of that step, and ends as one that was never stopped, logs included."""
    report, scenario = reports[name], SCENARIOS[name]
    assert report["code"] == (-signal.SIGKILL if scenario.killed else 128 + signal.SIGTERM)
    assert not report["came to the end"], "what follows train() in the script was run"
    # While a checkpoint is written it is a matter of speed whether the signal comes before the next step.
    assert report["last"] in ({4, 5} if scenario.renames else {scenario.step})
    assert report["hidden"] == []
    assert report["resumed"] == 0
    assert report["weights"], "the weights differ from those of the uninterrupted training"
    # The evaluation that was killed is missing in the logs, and nothing else is.
    assert report["history"] == (not scenario.killed)


END_TO_END = """
import atexit, sys
sys.path.insert(0, {here!r})
import torch
from tiny import At, points, told, trainer
from lightrainer import get_last_checkpoint

folder, enabled = sys.argv[1], sys.argv[2] == "on"
atexit.register(lambda: print("left in order", flush=True))
ready = At("on_step_end", lambda *_: print("training", flush=True), 3)
made = told(trainer(
    folder, train_dataset=points(4000), enable_jit_checkpoint=enabled, dataloader_num_workers=2, callbacks=[ready],
    dataloader_multiprocessing_context="fork",
))
try:
    made.train()
finally:
    print("finally", flush=True)
print("done", flush=True)
"""


@pytest.mark.parametrize("enabled", [True, False], ids=["on", "off"])
def test_a_signal_to_the_whole_group_of_processes(tmp_path, enabled):
    """As batch systems send it: workers that read data get it as well. With the argument off it kills, as ever."""
    process = subprocess.Popen(
        [sys.executable, "-c", END_TO_END.format(here=str(HERE)), str(tmp_path), "on" if enabled else "off"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, "PYTHONWARNINGS": "ignore"},
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.strip() == "training":
                break
        os.killpg(process.pid, signal.SIGTERM)
        said, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    if enabled:
        assert process.returncode == 143, errors[-3000:]
        assert [line for line in said.split("\n") if line in ("finally", "left in order", "done")] == [
            "finally",
            "left in order",
        ]
        last = get_last_checkpoint(tmp_path)
        assert last is not None
        assert f"SIGTERM: training stops at step {last.rpartition('-')[2]}" in errors
    else:
        assert process.returncode == -signal.SIGTERM
        assert get_last_checkpoint(tmp_path) is None


@pytest.fixture
def _handlers():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def asking(folder, step=2, **changes):
    """A trainer whose training gets a SIGTERM at the end of a step."""
    ask = At("on_step_end", lambda *_: signal.raise_signal(signal.SIGTERM), step)
    return told(trainer(folder, enable_jit_checkpoint=True, callbacks=[ask], **changes))


@pytest.mark.usefixtures("_handlers")
def test_a_handler_that_was_there_gets_the_signal_afterwards(tmp_path):
    """And is back in its place; `train` returns, as it has not ended the process."""
    seen = []

    def handler(number, frame):
        seen.append((number, sorted(path.name for path in tmp_path.iterdir())))

    signal.signal(signal.SIGTERM, handler)
    made = asking(tmp_path)
    assert made.train().global_step == 2
    assert seen == [(signal.SIGTERM, ["checkpoint-2"])]
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.usefixtures("_handlers")
def test_an_ignored_signal_still_stops_the_training(tmp_path):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert asking(tmp_path).train().global_step == 2
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize("ending", ["exit", "error", "interrupt", "plain"])
def test_handlers_are_as_before_however_it_ends(tmp_path, ending):
    """Also after an error, and after Ctrl-C, which goes its usual way."""

    def end(of, state, control):
        if ending == "exit":
            signal.raise_signal(signal.SIGTERM)
        if ending == "error":
            raise ZeroDivisionError
        if ending == "interrupt":
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    during = []
    watch = At("on_step_begin", lambda *_: during.append(signal.getsignal(signal.SIGTERM)))
    made = told(trainer(tmp_path, enable_jit_checkpoint=True, callbacks=[watch, At("on_step_end", end, 2)]))
    raised = {"exit": SystemExit, "error": ZeroDivisionError, "interrupt": KeyboardInterrupt}.get(ending)
    if raised is None:
        made.train()
    else:
        with pytest.raises(raised) as error:
            made.train()
        assert ending != "exit" or error.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.SIG_DFL not in during


@pytest.mark.usefixtures("_handlers")
def test_the_same_trainer_trains_on_afterwards(tmp_path):
    """Nothing of the signal is left behind."""
    made = asking(tmp_path)
    with pytest.raises(SystemExit):
        made.train()
    made.callback_handler.callbacks = [one for one in made.callback_handler.callbacks if not isinstance(one, At)]
    assert made.train(resume_from_checkpoint=True).global_step == 4


def test_without_the_argument_nothing_listens(tmp_path):
    """And it can be turned on and off between two trainings."""
    made = trainer(tmp_path)
    for enabled in (False, True, False):
        made.args.enable_jit_checkpoint = enabled
        made.train()
        assert sum(isinstance(one, JITCheckpointCallback) for one in made.callback_handler.callbacks) == enabled


def test_in_another_thread_it_trains_and_says_so(tmp_path, caplog):
    """Python gives signals to the main thread only."""
    caplog.set_level("WARNING", logger="lightrainer")
    before = signal.getsignal(signal.SIGTERM)
    made = trainer(tmp_path, enable_jit_checkpoint=True)
    thread = threading.Thread(target=made.train)
    thread.start()
    thread.join(60)
    assert made.state.global_step == 4
    assert "main thread" in caplog.text
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.usefixtures("_handlers")
def test_a_forked_process_ends_as_any_other(tmp_path):
    """One that a script forks off in the middle of a training inherits the handler, and must not hear it."""
    statuses = []

    def fork(of, state, control):
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    told(trainer(tmp_path, enable_jit_checkpoint=True, callbacks=[At("on_step_end", fork, 1)])).train()
    assert statuses == [-signal.SIGTERM]


@pytest.mark.usefixtures("_handlers")
def test_the_last_checkpoint_is_not_taken_for_a_superfluous_one(tmp_path):
    """With `save_total_limit=1` only the best is kept at the end of a training, of which this is not the end."""
    torch.manual_seed(3)
    made = asking(
        tmp_path, step=3, model=Tiny(), save_total_limit=1, load_best_model_at_end=True, metric_for_best_model="loss",
        greater_is_better=True, eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1,
        learning_rate=1e-3, train_dataset=points(32),
    )  # fmt: skip
    last = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    with pytest.raises(SystemExit):
        made.train()
    assert made.state.best_global_step == 1
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-3"}
    assert not torch.equal(last["first.weight"], made.model.state_dict()["first.weight"])
