"""The report: its page, its picture, when it is written, and what a training puts into it."""

import base64
import sys

import pytest
import torch

from helpers.callbacks.made_up_runs import NAME, Page, arguments, state
from helpers.callbacks.small_training import train_small
from lightrainer.callbacks import (
    MemoryCallback,
    RunReportCallback,
    ThroughputCallback,
    TrainerControl,
)
from lightrainer.callbacks.report import callback as report_callback
from lightrainer.callbacks.report.curves import panels
from lightrainer.callbacks.report.page import render_page

CONTROL = TrainerControl()


def test_page_is_well_formed_and_fetches_nothing():
    text = render_page(NAME, state(), b"PNG")
    page = Page(text)
    assert page.open == []
    shown = " ".join(page.texts)
    for words in (
        NAME,
        "step 300 of 300",
        "epoch 3",
        "learning_rate",
        "reward<b>",
        "41.5",
        "inf",
    ):
        assert words in shown, words
    assert "<script>" not in text
    assert "reward<b>" not in text
    assert [value for name, value in page.attributes if name in ("src", "href")] == [
        "data:image/png;base64,UE5H"
    ]
    assert "http" not in text


def test_report_matches_a_real_training(tmp_path):
    """What other callbacks measure is in it, too."""
    changes = {"eval_strategy": "steps", "eval_steps": 4}
    train_small(tmp_path, [RunReportCallback(), ThroughputCallback(), MemoryCallback()], **changes)
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    for word in (
        "loss",
        "learning_rate",
        "grad_norm",
        "samples_per_second",
        "host_memory_gib",
    ):
        assert word in " ".join(page.texts)
    picture = base64.b64encode((tmp_path / "report.png").read_bytes()).decode()
    assert f"data:image/png;base64,{picture}" in dict(page.attributes).values()


def test_report_leaves_out_evaluations_after_the_training(tmp_path):
    """The curves stay."""
    trainer = train_small(tmp_path, [RunReportCallback()], eval_strategy="steps", eval_steps=4)
    charts = panels(trainer.state.log_history)
    torch.nn.init.zeros_(next(trainer.model.parameters()))
    trainer.evaluate()
    assert panels(trainer.state.log_history) == charts


def test_report_of_a_resumed_training_has_all_curves(tmp_path):
    changes = {"save_strategy": "steps", "save_steps": 5}
    train_small(tmp_path, [RunReportCallback()], **changes)
    (tmp_path / "report.html").unlink()
    train_small(
        tmp_path,
        [RunReportCallback()],
        resume=str(tmp_path / "checkpoint-10"),
        **changes,
    )
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<tr><td>2</td>" in text  # the second step is that of the first run
    assert "<tr><td>16</td>" in text


def test_report_is_written_at_evaluations_and_checkpoints_but_not_too_often(tmp_path, monkeypatch):
    now, drawn = [0.0], []

    def draw(name, state, picture):
        drawn.append(now[0])
        now[0] += 1  # a drawing takes a second, so the next one may come after 50
        return "page"

    monkeypatch.setattr(report_callback, "render_page", draw)
    monkeypatch.setattr(report_callback.time, "monotonic", lambda: now[0])
    callback, args, trainer_state = (
        RunReportCallback(),
        arguments(tmp_path),
        state(global_step=200),
    )
    for moment, event in (
        (0.0, "on_evaluate"),
        (10.0, "on_save"),
        (40.0, "on_evaluate"),
        (60.0, "on_save"),
    ):
        now[0] = moment
        getattr(callback, event)(args, trainer_state, CONTROL)
    callback.on_train_end(args, trainer_state, CONTROL)
    assert drawn == [0.0, 60.0, 61.0]


def test_report_without_matplotlib_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # importing it would now fail
    with pytest.raises(
        ImportError, match=r"RunReportCallback needs .*pip install 'lightrainer\[plot\]'"
    ):
        RunReportCallback()
