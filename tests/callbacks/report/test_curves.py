"""From the history to the charts."""

import math

from helpers.callbacks.made_up_runs import history
from lightrainer.callbacks.report.curves import panels


def titles(logs):
    return [panel.title for panel in panels(logs)]


def test_panels_of_a_run_have_the_promised_titles():
    expected = {
        "Loss",
        "Accuracy",
        "Learning rate",
        "Gradient norm",
        "Gradient norm by layer",
        "Memory (GiB)",
    }
    expected |= {
        "Samples per second",
        "Tokens per second",
        "Operations per second",
        "Share of the peak (MFU)",
    }
    assert set(titles(history())) == {*expected, "reward<b>"}
    assert titles(history())[0] == "Loss"
    assert titles(history()[::-1])[0] == "Loss"
    assert titles([]) == titles([{"epoch": 1.0, "step": 3}]) == []


def test_panels_have_every_logged_point():
    by_title = {panel.title: panel.curves for panel in panels(history())}
    assert list(by_title["Loss"]) == ["training", "evaluation"]
    assert [step for step, _ in by_title["Loss"]["training"]] == list(range(10, 301, 10))
    assert math.isnan(by_title["Loss"]["training"][1][1])
    assert by_title["Loss"]["evaluation"] == [(step, 2 - step / 400) for step in range(50, 301, 50)]
    assert {label: points[0] for label, points in by_title["Memory (GiB)"].items()} == {
        "main memory": (10, 3.25),
        "accelerator, peak": (10, 41.5),
    }


def test_panels_of_many_layers_show_eight_of_them():
    (layers,) = [
        panel.curves for panel in panels(history()) if panel.title == "Gradient norm by layer"
    ]
    assert len(layers) == 8
    assert {"h.0", "h.11"} <= set(layers)


def test_panels_name_the_datasets_of_losses():
    logs = [{"eval_loss": 1.0, "step": 1}, {"eval_a_loss": 2.0, "eval_a_f1": 0.5, "step": 1}]
    assert {panel.title: list(panel.curves) for panel in panels(logs)} == {
        "Loss": ["evaluation", "evaluation: a"],
        "A f1": ["evaluation"],
    }
