"""The host waits for the device at logs, and at most once for a batch of an evaluation."""

import pytest

import lightrainer
from benchmarks import host_sync
from helpers.devices.counted_waits import (
    CONTROL,
    EVALUATIONS,
    SETTINGS,
    Setting,
    waits_between_logs,
    waits_of_batches,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", SETTINGS)
def test_steps_between_logs_do_not_wait(name):
    waits = waits_between_logs(lightrainer, SETTINGS[name], steps=3)
    assert waits.total() == 3 * SETTINGS[name].waits, waits


def test_synchronisations_count_a_loss_that_is_read():
    waits = waits_between_logs(lightrainer, CONTROL, steps=3)
    assert waits.total() == 3
    assert all(line.startswith("counted_waits.py:") for _, line in waits)


def test_batches_that_are_not_page_locked_are_counted():
    waits = waits_between_logs(lightrainer, Setting({"dataloader_pin_memory": False}), steps=3)
    assert waits.total() == 3 * 3, "ids, mask and labels of three steps"


@pytest.mark.parametrize("name", EVALUATIONS)
def test_synchronisations_of_an_evaluation_batch_are_at_most_one(name):
    waits = waits_of_batches(lightrainer, EVALUATIONS[name], "evaluate", batches=3)
    assert waits.total() == 3 * EVALUATIONS[name].waits, waits
    assert EVALUATIONS[name].waits <= 1


def test_predict_waits_once_for_a_batch():
    assert waits_of_batches(lightrainer, Setting(), "predict", batches=3).total() == 3


def test_page_has_the_waits_of_all_settings():
    rows = host_sync.published()
    expected = {name: setting.waits for name, setting in (SETTINGS | EVALUATIONS).items()}
    assert {name: float(rows[name][1]) for name in expected} == expected, (
        "python -m benchmarks.host_sync publish"
    )
