"""From the history to the charts."""

import math
import random

import pytest
from made_up_runs import history

from lightrainer.callbacks.report import curves
from lightrainer.callbacks.report.chart import Scale, fitting, round_values, short
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


def test_several_evaluation_sets_and_repeated_steps():
    logs = [{"eval_a_loss": 1.0, "eval_b_loss": 2.0, "step": 1}, {"eval_a_loss": 3.0, "step": 1}]
    (panel,) = panels(logs)
    assert [(curve.label, curve.points) for curve in panel.curves] == [
        ("evaluation: a", [(1, 3.0)]),
        ("evaluation: b", [(1, 2.0)]),
    ]


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


def test_the_mean_lies_in_the_middle_and_does_not_bend_much_at_the_ends():
    line = [(float(step), 2.0 * step + 1) for step in range(200)]
    for (_, mean), (_, value) in zip(curves.smoothed(line), line, strict=True):
        assert mean == pytest.approx(value, abs=3)
    powers = [(float(step), 10.0 ** (step % 2)) for step in range(200)]
    assert curves.smoothed(powers, is_logarithmic=True)[100][1] == pytest.approx(math.sqrt(10), rel=0.3)


def test_the_scale_holds_all_values():
    assert fitting([3.0, 9.0], from_zero=True).low == 0
    log = fitting([0.001, 5.0], may_be_logarithmic=True)
    assert log.is_logarithmic
    assert log.ticks == [0.001, 0.01, 0.1, 1.0] == pytest.approx([0.001, 0.01, 0.1, 1.0])
    for values in ([1.0], [0.0], [-5.0, 5.0], [1e-9, 2e-9], [1e12, 3e12]):
        scale = fitting(values)
        assert all(0 < scale.place(value) < 1 for value in values)
        assert all(0 <= scale.place(tick) <= 1.001 for tick in scale.ticks)
        assert 2 <= len(scale.ticks) <= 8
    assert Scale(0, 10).place(5) == 0.5
    assert round_values(0, 3000) == [0, 1000, 2000, 3000]


def test_numbers_are_short():
    values = (0.0, 1.23456, 0.02134, 5e-5, 1234.0, 12345.0, 104123.0, 1e5, 3.1e14, -2.5, math.nan, math.inf, -math.inf)
    assert " ".join(map(short, values)) == "0 1.235 0.02134 5e-5 1234 12.35k 104.1k 100k 310T -2.5 NaN ∞ -∞"
