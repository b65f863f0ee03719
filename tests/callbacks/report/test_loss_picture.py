"""The picture of the losses for model cards: an SVG that any browser draws."""

import math
import re
from xml.etree import ElementTree

import pytest

from lightrainer.callbacks.report import draw_loss_picture

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
    """The places that curves go through, one list for each."""
    style = style or {"stroke-width": "2.5"}
    found = [path.get("d", "") for path in drawn(logs).iter(f"{SVG}path") if style.items() <= path.attrib.items()]
    return [[tuple(map(float, place.split())) for place in re.split("[ML]", way)[1:]] for way in found]


def test_each_curve_goes_through_its_values():
    """Against the scales that the numbers beside the axes show."""
    training, evaluation, rate = lines(history())
    assert [len(training), len(evaluation), len(rate)] == [19, 3, 19]
    (x, y), (last_x, last_y) = training[0], training[-1]
    assert last_y > y  # the loss fell, and y counts downwards
    for step, place in zip((5, 10, 15), evaluation, strict=True):
        assert place[0] == training[step - 1][0]
        of = (5 - step / 20 - (5 - 4 * 1 / 20)) / (-4 * 18 / 20)
        assert place[1] == pytest.approx(y + of * (last_y - y), abs=0.2)
        assert place[0] == pytest.approx(x + (step - 1) / 18 * (last_x - x), abs=0.2)


def test_it_says_what_is_drawn():
    said = texts(history())
    assert {"Loss", "Learning rate", "training", "evaluation (lowest 4.25 at step 15)", "step"} <= set(said)


@pytest.mark.parametrize("logs", [[], [{"train_loss": 1.0, "step": 1}], [{"loss": 1.0}], [{"eval_f1": 1.0, "step": 2}]])
def test_a_history_without_losses_gives_none(logs):
    assert draw_loss_picture(logs) is None


def test_of_many_points_the_mean_stands_out():
    noisy = [{"loss": 2 + (-1) ** step, "step": step} for step in range(5000)]
    (mean,), (faint,) = lines(noisy), lines(noisy, **{"stroke-opacity": "0.3"})
    assert len(faint) < 1000
    rise = [max(y for _, y in line[10:-10]) - min(y for _, y in line[10:-10]) for line in (mean, faint)]
    assert rise[0] < rise[1] / 10


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e308])
def test_what_cannot_be_drawn_is_marked(value):
    red = [path for path in drawn([{"loss": value, "step": 3}]).iter(f"{SVG}path") if path.get("stroke-dasharray")]
    assert len(red) == 1
    assert "no finite values" in texts([{"loss": value, "step": 3}])


def test_names_are_text_whatever_is_in_them():
    said = texts([{"eval_<a>&\x00_loss": 1.0, "step": 2}])
    assert "evaluation: <a>& (lowest 1 at step 2)" in said
