"""From the history to the charts."""

import math

from helpers.callbacks.made_up_runs import history
from lightrainer.callbacks.report.curves import panels


def titles(logs):
    return [panel.title for panel in panels(logs)]


def test_panels_of_a_run_have_the_names_of_its_logs():
    expected = {
        "loss",
        "eval_accuracy",
        "learning_rate",
        "grad_norm",
        "grad_norm by layer",
        "host_memory_gib",
        "device_memory_peak_gib",
        "samples_per_second",
        "tokens_per_second",
        "flops_per_second",
        "mfu",
    }
    assert set(titles(history())) == {*expected, "reward<b>"}
    assert titles(history())[0] == "loss"
    assert titles(history()[::-1])[0] == "loss"
    assert titles([]) == titles([{"epoch": 1.0, "step": 3}]) == []


def test_panels_have_every_logged_point():
    by_title = {panel.title: panel.curves for panel in panels(history())}
    assert list(by_title["loss"]) == ["loss", "eval_loss"]
    assert [step for step, _ in by_title["loss"]["loss"]] == list(range(10, 301, 10))
    assert math.isnan(by_title["loss"]["loss"][1][1])
    assert by_title["loss"]["eval_loss"] == [(step, 2 - step / 400) for step in range(50, 301, 50)]
    assert len(by_title["grad_norm by layer"]) == 12


def test_panels_name_the_datasets_of_losses():
    logs = [{"eval_loss": 1.0, "step": 1}, {"eval_a_loss": 2.0, "eval_a_f1": 0.5, "step": 1}]
    assert {panel.title: list(panel.curves) for panel in panels(logs)} == {
        "loss": ["eval_loss", "eval_a_loss"],
        "eval_a_f1": ["eval_a_f1"],
    }
