"""The picture of the losses."""

import math
import sys
from types import SimpleNamespace

import pytest

from lightrainer.callbacks import LossCurveCallback, TrainerControl, TrainerState, draw_loss_curve, loss_curve

CONTROL = TrainerControl()
PNG = b"\x89PNG\r\n\x1a\n"


def history(steps=20):
    logs = [{"loss": 5 / (1 + step), "learning_rate": 1e-3, "step": step} for step in range(1, steps)]
    evaluations = [{"eval_loss": 6 / (1 + step), "eval_runtime": 1.0, "step": step} for step in range(5, steps, 5)]
    return [*logs, *evaluations, {"train_loss": 1.0, "step": steps}]


def pixels(picture):
    from io import BytesIO

    from matplotlib.image import imread

    return imread(BytesIO(picture))


@pytest.mark.parametrize(
    "logs",
    [
        history(),
        history(200),
        history()[:1],
        [{"eval_loss": 1.0, "step": 3}],
        [{"eval_a_loss": 1.0, "step": 1}, {"eval_b_loss": 2.0, "step": 1}],
        [{"loss": math.nan, "learning_rate": 0.0, "step": step} for step in range(1, 99)],
        [{"loss": math.inf, "step": 1}, {"loss": 1.0, "step": 2}],
    ],
    ids=["few", "many", "one", "only evaluation", "two sets", "nan", "infinite"],
)
def test_any_history_with_losses_gives_a_picture(logs):
    picture = draw_loss_curve(logs)
    assert picture is not None
    height, width, _ = pixels(picture).shape
    assert width > 800
    assert height > 400


def test_the_picture_depends_on_the_losses():
    one, again, other = draw_loss_curve(history()), draw_loss_curve(history()), draw_loss_curve(history(21))
    assert one == again
    assert one != other


@pytest.mark.parametrize("logs", [[], [{"train_loss": 1.0, "step": 1}], [{"loss": 1.0}]])
def test_a_history_without_curves_gives_none(logs, tmp_path):
    assert draw_loss_curve(logs) is None
    args, state = SimpleNamespace(output_dir=tmp_path), TrainerState(log_history=logs)
    LossCurveCallback().on_train_end(args, state, CONTROL)
    assert list(tmp_path.iterdir()) == []


def test_it_is_drawn_into_the_output_folder_or_to_the_given_path(tmp_path):
    args, state = SimpleNamespace(output_dir=str(tmp_path)), TrainerState(log_history=history())
    LossCurveCallback().on_train_end(args, state, CONTROL)
    LossCurveCallback(tmp_path / "pictures" / "here.png").on_train_end(args, state, CONTROL)
    assert (tmp_path / "loss_curve.png").read_bytes().startswith(PNG)
    assert (tmp_path / "pictures" / "here.png").read_bytes().startswith(PNG)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["loss_curve.png", "pictures"]


def test_evaluations_draw_only_as_often_as_is_cheap(tmp_path, monkeypatch):
    now, drawn = [0.0], []

    def draw(log_history):
        drawn.append(now[0])
        now[0] += 1  # a drawing takes a second, so the next one may come after 50

    monkeypatch.setattr(loss_curve, "draw_loss_curve", draw)
    monkeypatch.setattr(loss_curve.time, "monotonic", lambda: now[0])
    callback, args = LossCurveCallback(), SimpleNamespace(output_dir=str(tmp_path))
    for now[0] in (0.0, 10.0, 40.0, 60.0):
        callback.on_evaluate(args, TrainerState(), CONTROL, metrics={})
    callback.on_train_end(args, TrainerState(), CONTROL)
    assert drawn == [0.0, 60.0, 61.0]


def test_drawing_leaves_pyplot_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would now fail
    assert draw_loss_curve(history()) is not None


def test_without_the_package_construction_fails_with_the_extra_to_install(monkeypatch):
    monkeypatch.setattr(loss_curve, "is_installed", lambda name: False)
    with pytest.raises(ImportError, match=r"pip install 'lightrainer\[plot\]'"):
        LossCurveCallback()
