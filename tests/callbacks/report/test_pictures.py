"""The pictures of a run: the losses as PNG, and as SVG for model cards."""

import math
import sys
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from lightrainer.callbacks import draw_loss_curve
from lightrainer.callbacks.report.curves import Panel
from lightrainer.callbacks.report.pictures import _draw_panel, draw


def history(steps=20):
    logs = [
        {"loss": 5 - 4 * step / steps, "learning_rate": 1e-3, "step": step}
        for step in range(1, steps)
    ]
    return [*logs, *({"eval_loss": 5 - step / steps, "step": step} for step in range(5, steps, 5))]


def axes_of(title, **curves):
    """The axes on which a panel is drawn."""
    axes = Figure().subplots()
    _draw_panel(axes, Panel(title, curves))
    return axes


@pytest.mark.parametrize(
    "logs", [[], [{"train_loss": 1.0, "step": 1}], [{"loss": 1.0}], [{"eval_f1": 1.0, "step": 2}]]
)
def test_draw_loss_curve_without_losses_returns_none(logs):
    assert draw_loss_curve(logs) is None


@pytest.mark.parametrize("file_format", ["png", "svg"])
def test_draw_loss_curve_depends_on_the_losses_and_leaves_pyplot_alone(monkeypatch, file_format):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would now fail
    first, again, other = (draw_loss_curve(history(steps), file_format) for steps in (20, 20, 21))
    assert first == again
    assert first != other


def test_svg_has_titles_and_labels_as_text():
    picture = ElementTree.fromstring(draw_loss_curve(history(), "svg"))
    texts = {element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {"loss", "learning_rate", " loss", " eval_loss"} <= texts


def test_svg_of_odd_names_is_well_formed():
    logs = [{"eval_a\x00$<b>_loss": 1.0, "_hidden": 1.0, "step": 1}]
    picture = ElementTree.fromstring(draw_loss_curve(logs, "svg"))
    texts = {element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert " eval_a$<b>_loss" in texts


def test_curves_go_through_their_values():
    points = [(1, 3.0), (2, 2.0), (3, 2.5)]
    (line,) = axes_of("Loss", training=points).lines
    assert line.get_xydata().tolist() == [list(point) for point in points]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_marked(value):
    axes = axes_of("Loss", training=[(1, 1.0), (3, value)])
    assert [line.get_xdata()[0] for line in axes.lines if line.get_color() == "red"] == [3]


def test_draw_legend_is_left_out_of_many_curves():
    curves = {f"layer{number}": [(1, 1.0)] for number in range(9)}
    assert axes_of("grad_norm by layer", **curves).get_legend() is None
    curves.pop("layer0")
    assert axes_of("grad_norm by layer", **curves).get_legend() is not None


def test_draw_takes_at_most_forty_panels():
    panels = [Panel(f"value {number}", {"a": [(1, 1.0)]}) for number in range(41)]
    text = draw(panels, file_format="svg").decode()
    assert "value 39" in text
    assert "value 40" not in text


def test_draw_loss_curve_without_matplotlib_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # importing it would now fail
    with pytest.raises(ImportError, match=r"pip install 'lightrainer\[plot\]'"):
        draw_loss_curve(history())
