"""Callbacks that show a training never end it, whatever values a script logs."""

import logging
import math
from types import SimpleNamespace

import numpy
import pytest
import torch

from helpers.callbacks.made_up_runs import Page
from helpers.callbacks.made_up_runs import history as long_history
from lightrainer.callbacks import (
    PrinterCallback,
    ProgressCallback,
    RunReportCallback,
    TrainerControl,
    TrainerState,
    draw_loss_curve,
)
from lightrainer.callbacks.progress_notebook import NotebookProgressCallback
from lightrainer.callbacks.report.curves import panels
from lightrainer.callbacks.report.page import render_page
from lightrainer.callbacks.report.pictures import draw
from lightrainer.facade.hub.evaluations import evaluations


def steps(*values, name="loss"):
    return [{name: value, "step": step} for step, value in enumerate(values, 1)]


HISTORIES = {
    "none at all": [],
    "NaN": steps(math.nan, math.nan),
    "infinities": steps(math.inf, -math.inf, 1.0),
    "None": steps(None, 1.0, None),
    "strings": steps("1.0", "nan", 2.0),
    "huge and tiny": steps(1e38, -1e38, 3e38, 1e-38, 1e-45),
    "lists and dicts": steps([1.0], {"a": 1.0}, (), set()),
    "arrays": steps(
        numpy.float32(1), numpy.array(2.0), numpy.zeros(3), torch.tensor(1.5), torch.zeros(2)
    ),
    "no steps": [{"loss": 1.0}, {"eval_loss": 2.0, "epoch": 1}],
    "steps of other kinds": [{"loss": 1.0, "step": step} for step in (None, "3", [1], 2.5, -4)],
    "the same step": [
        {"loss": 1.0, "step": 1},
        {"loss": 2.0, "step": 1},
        {"eval_loss": 3.0, "step": 1},
    ],
    "objects": steps(object(), torch.nn.Linear(1, 1)),
    "bad texts": [{"loss": 1.0, "note": "</script><b>", "</script>": 1.0, "step": 1}],
    "two sets": [{"eval_a_loss": 1.0, "step": 1}, {"eval_b_loss": 2.0, "step": 1}],
    "a long run": long_history(1000, every=1),
    "other names": [
        {
            "eval_loss": None,
            "eval_f1": "high",
            "eval_": 1.0,
            "learning_rate": None,
            "grad_norm": "x",
            "step": 1,
        },
        {"train_runtime": None, "train_loss": "x", "step": 1},
        {"train_runtime": "long", "step": 2},
        {"mfu": math.nan, "host_memory_gib": math.inf, "samples_per_second": -1.0, "step": 3},
    ],
}


def state(history, **changed):
    values = {
        "max_steps": 3,
        "global_step": 3,
        "epoch": 1.0,
        "num_train_epochs": 1,
        "log_history": history,
    }
    return TrainerState(**values | changed)


@pytest.fixture(autouse=True)
def _coarse_pictures():
    import matplotlib

    with matplotlib.rc_context({"savefig.dpi": 20}):
        yield


@pytest.mark.parametrize("name", HISTORIES)
def test_report_of_an_odd_history_has_a_page_and_pictures(name):
    history = HISTORIES[name]
    page = render_page("odd", state(history), b"")
    assert Page(page).open == []
    assert len(page) < 100_000
    drawn = panels(history)
    assert not drawn or draw(drawn, "odd").startswith(b"\x89PNG")
    picture = draw_loss_curve(history)
    assert picture is None or picture.startswith(b"\x89PNG")
    assert (draw_loss_curve(history, "svg") is None) == (picture is None)
    for evaluation in evaluations(history):
        assert all(
            math.isfinite(value) or isinstance(value, float)
            for value in evaluation.metrics.values()
        )


def test_report_plots_what_an_odd_history_has():
    """Negative control: the good points beside the odd ones are there."""
    odd = [*HISTORIES["objects"], *HISTORIES["strings"], *HISTORIES["steps of other kinds"]]
    (loss,) = panels([*odd, {"loss": 7.0, "step": 9}])
    assert loss.curves["loss"] == [(-4.0, 1.0), (2.5, 1.0), (3.0, 2.0), (9.0, 7.0)]


def shown_by(callback, tmp_path, history):
    """Every event of a training, with each entry as its logs."""
    arguments = SimpleNamespace(output_dir=str(tmp_path), eval_strategy="steps", disable_tqdm=False)
    control, now = TrainerControl(), state([])
    callback.on_train_begin(arguments, now, control)
    for entry in history:
        now.log_history.append(entry)
        callback.on_log(arguments, now, control, logs=dict(entry))
        callback.on_evaluate(arguments, now, control, metrics=dict(entry))
    now.log_history = history
    callback.on_train_end(arguments, now, control)


@pytest.mark.parametrize(
    "kind", [PrinterCallback, ProgressCallback, NotebookProgressCallback, RunReportCallback]
)
def test_callbacks_never_end_a_training_with_an_odd_history(tmp_path, kind):
    callback = kind()
    for history in HISTORIES.values():
        shown_by(callback, tmp_path, history)


def test_report_failure_warns_once(tmp_path, caplog):
    """A folder that cannot be made."""
    (tmp_path / "file").write_text("")
    callback = RunReportCallback()
    arguments = SimpleNamespace(output_dir=str(tmp_path / "file" / "below"))
    for _ in range(3):
        with caplog.at_level(logging.WARNING):
            callback.on_train_end(arguments, state(steps(1.0, 2.0)), TrainerControl())
    assert caplog.text.count("NotADirectoryError") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
