"""The pictures of a run: the losses as PNG and as SVG for model cards, and the report as PNG."""

import math
import re
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from lightrainer.callbacks import LossCurveCallback, TrainerControl, TrainerState, draw_loss_curve
from lightrainer.callbacks.report.pictures import draw_loss_picture

CONTROL = TrainerControl()
SVG = "{http://www.w3.org/2000/svg}"


def history(steps=20):
    logs = [{"loss": 5 - 4 * step / steps, "learning_rate": 1e-3, "step": step} for step in range(1, steps)]
    return [*logs, *({"eval_loss": 5 - step / steps, "step": step} for step in range(5, steps, 5))]


def drawn(logs):
    picture = draw_loss_picture(logs)
    assert picture is not None
    return ElementTree.fromstring(picture)


def texts(logs):
    return [element.text for element in drawn(logs).iter(f"{SVG}text")]


def lines(logs, **style):
    """The positions that curves go through, one list for each."""
    style = style or {"stroke-width": "2.5"}
    found = [path.get("d", "") for path in drawn(logs).iter(f"{SVG}path") if style.items() <= path.attrib.items()]
    return [[tuple(map(float, place.split())) for place in re.split("[ML]", way)[1:]] for way in found]


@pytest.mark.parametrize("logs", [[], [{"train_loss": 1.0, "step": 1}], [{"loss": 1.0}], [{"eval_f1": 1.0, "step": 2}]])
def test_a_history_without_losses_gives_none(logs, tmp_path):
    assert draw_loss_curve(logs) is draw_loss_picture(logs) is None
    args, state = SimpleNamespace(output_dir=tmp_path), TrainerState(log_history=logs)
    LossCurveCallback().on_train_end(args, state, CONTROL)
    assert list(tmp_path.iterdir()) == []


def test_the_png_depends_on_the_losses_and_leaves_pyplot_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would now fail
    one, again, other = draw_loss_curve(history()), draw_loss_curve(history()), draw_loss_curve(history(21))
    assert one == again
    assert one != other


def test_the_png_is_in_the_output_folder_or_at_the_given_path(tmp_path):
    args, state = SimpleNamespace(output_dir=str(tmp_path)), TrainerState(log_history=history())
    LossCurveCallback().on_train_end(args, state, CONTROL)
    LossCurveCallback(tmp_path / "pictures" / "here.png").on_train_end(args, state, CONTROL)
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png"))
    assert files == ["loss_curve.png", "pictures/here.png"]


def test_the_svg_curves_go_through_their_values():
    training, evaluation, rate = lines(history())
    assert [len(training), len(evaluation), len(rate)] == [19, 3, 19]
    (x, y), (last_x, last_y) = training[0], training[-1]
    assert last_y > y  # the loss fell, and y counts downwards
    for step, place in zip((5, 10, 15), evaluation, strict=True):
        assert place[0] == training[step - 1][0]
        of = (5 - step / 20 - (5 - 4 * 1 / 20)) / (-4 * 18 / 20)
        assert place[1] == pytest.approx(y + of * (last_y - y), abs=0.2)
        assert place[0] == pytest.approx(x + (step - 1) / 18 * (last_x - x), abs=0.2)
    said = texts(history())
    assert {"Loss", "Learning rate", "training", "evaluation (lowest 4.25 at step 15)", "step"} <= set(said)


def test_of_many_points_the_mean_stands_out():
    noisy = [{"loss": 2 + (-1) ** step, "step": step} for step in range(5000)]
    (mean,), (faint,) = lines(noisy), lines(noisy, **{"stroke-opacity": "0.3"})
    assert len(faint) < 1000
    rise = [max(y for _, y in line[10:-10]) - min(y for _, y in line[10:-10]) for line in (mean, faint)]
    assert rise[0] < rise[1] / 10


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_cannot_be_drawn_are_marked(value):
    red = [path for path in drawn([{"loss": value, "step": 3}]).iter(f"{SVG}path") if path.get("stroke-dasharray")]
    assert len(red) == 1
    assert "no finite values" in texts([{"loss": value, "step": 3}])
