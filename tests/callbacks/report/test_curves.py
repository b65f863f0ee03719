"""From the history to the charts."""

import math
import random

from made_up_runs import history

from lightrainer.callbacks.report import curves
from lightrainer.callbacks.report.curves import panels


def titles(logs):
    return [panel.title for panel in panels(logs)]


def test_the_charts_are_those_that_were_promised():
    expected = "Loss/Accuracy/Learning rate/Gradient norm/Gradient norm by layer/Samples per second/Tokens per second/"
    expected += "Operations per second/Share of the peak (MFU)/Memory/reward<b>"
    assert "/".join(titles(history())) == expected
    assert titles([]) == titles([{"epoch": 1.0, "step": 3}]) == []


def test_every_point_that_was_logged_is_in_its_chart():
    by_title = {panel.title: panel.curves for panel in panels(history())}
    training, evaluation = by_title["Loss"]
    assert (training.label, evaluation.label) == ("training", "evaluation")
    assert [step for step, _ in training.points] == list(range(10, 301, 10))
    assert evaluation.points == [(step, 2 - step / 400) for step in range(50, 301, 50)]
    assert [curve.points[0][1] for curve in by_title["Memory"]] == [3.25, 41.5]
    assert by_title["Share of the peak (MFU)"][0].points[0] == (10, 41.0)
    assert by_title["Operations per second"][0].points[0] == (10, 300.0)


def test_values_that_are_not_finite_are_kept_apart():
    loss = panels(history())[0].curves[0]
    assert [step for step, _ in loss.others] == [20]
    assert math.isnan(loss.others[0][1])
    assert len(loss.finite) == 29


def test_of_many_points_no_peak_gets_lost():
    rng = random.Random(0)
    points = [(float(step), rng.random()) for step in range(100_000)]
    points[77_777] = (77_777.0, 50.0)
    points[33] = (33.0, -50.0)
    thin = curves.thinned(points, 500)
    assert len(thin) <= 500
    assert {(77_777.0, 50.0), (33.0, -50.0)} <= set(thin)
    assert thin == sorted(thin)
    assert curves.thinned(points[:500], 500) == points[:500]
