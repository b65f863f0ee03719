"""Minimize or maximize the objective of a search, and say so."""

import csv
import logging

import pytest

from helpers.search.small_searches import Odd, random_sampler, searcher, space
from lightrainer.facade.search.hyperparameters import default_compute_objective
from lightrainer.facade.search.report import write_report


def searched(folder, *args, **options):
    """A search for the best accuracy, which is the learning rate, and so is not that of the
    first trial.
    """
    trainer = searcher(
        folder, compute_metrics=lambda prediction: {"accuracy": trainer.args.learning_rate}
    )
    best = trainer.hyperparameter_search(
        space, *args, n_trials=3, sampler=random_sampler(), **options
    )
    return trainer.study, best


def test_direction_of_accuracy_is_maximize_in_every_output(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="lightrainer"):
        study, best = searched(tmp_path, direction="maximize")
    write_report(study, tmp_path / "search")
    rates = [trial.params["learning_rate"] for trial in study.trials]
    assert best.objective == max(rates) > min(rates)
    assert "Search: maximize the objective." in caplog.text
    assert f"Best: trial {best.run_id}" in caplog.text
    with (tmp_path / "search" / "trials.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert {row["objective"] for row in rows} == {"maximize the objective"}
    assert rows[int(best.run_id)]["folder"] == str(tmp_path / f"run-{best.run_id}")
    assert "maximize the objective" in (tmp_path / "search" / "report.html").read_text()


@pytest.mark.parametrize("given", [{"pruner": Odd()}, {}], ids=["pruner", "none"])
def test_direction_of_several_metrics(tmp_path, caplog, given):
    both = lambda metrics: [metrics["eval_loss"], metrics["eval_accuracy"]]
    study, _ = searched(tmp_path, both, direction=["minimize", "maximize"], **given)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 3, "nothing is pruned"
    assert ("prunes nothing" in caplog.text) == bool(given)
    assert [direction.name for direction in study.directions] == ["MINIMIZE", "MAXIMIZE"]


@pytest.mark.parametrize(
    "objective", [None, default_compute_objective, lambda metrics: metrics["eval_accuracy"]]
)
def test_functions_and_the_default_are_minimized_as_in_the_reference(tmp_path, caplog, objective):
    """Logged where it is the sum of metrics, which the user has not chosen."""
    study, best = searched(tmp_path, objective)
    assert best.objective == min(trial.params["learning_rate"] for trial in study.trials)
    count = caplog.text.count("The search MINIMIZES eval_accuracy.")
    assert count == (objective in (None, default_compute_objective))
