"""The report of a study: what is in the files, with one objective and with several; and the
dashboard beside it.
"""

import io
import json
import re

import optuna
import pytest

from helpers.faults.refused_writes import writes_fail_after
from helpers.search.small_searches import random_sampler, searcher, space
from lightrainer.facade.search import report
from lightrainer.facade.search.report import write_report
from lightrainer.facade.search.storages import open_storage


def test_report_of_one_objective(tmp_path):
    """`a` counts for it, and `b` hardly."""

    def objective(trial):
        a, b = trial.suggest_float("a", 0, 1), trial.suggest_float("b", 0, 1)
        trial.report(a, 1)
        return a**2 + 0.01 * b

    study = optuna.create_study(sampler=random_sampler())
    study.optimize(objective, n_trials=12)
    page = write_report(study, tmp_path / "report").read_text()
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert names == {"report.html", "trials.csv"}
    for title in ("Intermediate Values Plot", "Slice Plot"):
        assert count(page, title) == 1
    assert page.count('class="plotly-graph-div"') == 5
    assert len((tmp_path / "report" / "trials.csv").read_text().splitlines()) == 13
    assert not re.search(r"<(script|link|img)[^>]* (src|href)=", page)  # nothing is fetched


def test_report_stays_whole_when_a_new_one_cannot_be_written(tmp_path):
    study = optuna.create_study(sampler=random_sampler())
    study.optimize(lambda trial: trial.suggest_float("a", 0, 1), n_trials=4)
    write_report(study, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for size in (10, len(before["trials.csv"])):
        with writes_fail_after(size):
            write_report(study, tmp_path)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_values_of_any_kind_are_drawn(tmp_path):
    """Infinite values, choices of any type, parameters that some trials lack, and text that is
    no HTML.
    """

    def objective(trial):
        trial.suggest_categorical("<b>", ["x<y", None, True, 1.5])
        rate = trial.suggest_float("rate", 1e-5, 1, log=True)
        if trial.number % 2:
            trial.suggest_int("depth", 1, 1)
        return float("inf") if trial.number == 3 else rate

    study = optuna.create_study(study_name="<odd>", sampler=random_sampler())
    study.optimize(objective, n_trials=8)
    page = write_report(study, tmp_path).read_text()
    assert count(page, "Optimization History Plot") == 1
    assert "&lt;odd&gt;: " in page
    assert "<odd>" not in page.partition("<script")[0]


def test_write_report_of_several_objectives_shows_each_and_their_trade_offs(tmp_path):
    study = optuna.create_study(directions=["minimize", "maximize"], sampler=random_sampler())

    def objective(trial):
        rate = trial.suggest_float("rate", 0, 1)
        if trial.number == 3:
            raise ArithmeticError("no such luck")
        return rate, rate

    study.optimize(objective, n_trials=6, catch=ArithmeticError)
    page = write_report(study, tmp_path).read_text()
    assert count(page, "Pareto-front Plot") == 1
    assert count(page, "Optimization History Plot") == 2
    assert (
        (tmp_path / "trials.csv")
        .read_text()
        .startswith("trial,state,failure,objective,value_0,value_1,")
    )


def test_write_report_without_plotly_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "is_installed", lambda name: name != "plotly")
    study = optuna.create_study(sampler=random_sampler())
    study.optimize(lambda trial: trial.suggest_float("rate", 0, 1), n_trials=2)
    with pytest.raises(ImportError, match=r"pip install .*lightrainer\[search\]"):
        write_report(study, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"trials.csv"}


def count(page, title):
    """Return the number of figures with a title."""
    return page.count(f'"title":{{"text":"{title}"}}')


def test_report_dashboard_shows_the_storage(tmp_path):
    """The app that `optuna-dashboard` serves, asked as its page asks it."""
    dashboard = pytest.importorskip("optuna_dashboard", exc_type=ImportError)
    address = str(tmp_path / "study.log")
    trainer = searcher(tmp_path / "out")
    best = trainer.hyperparameter_search(
        space, n_trials=2, sampler=random_sampler(), storage=address, study_name="mine"
    )
    app = dashboard.wsgi(open_storage(address))
    (summary,) = asked(app, "/api/studies")["study_summaries"]
    assert summary["study_name"] == "mine"
    detail = asked(app, f"/api/studies/{summary['study_id']}")
    assert [trial["state"] for trial in detail["trials"]] == ["Complete", "Complete"]
    assert best.objective in [trial["values"][0] for trial in detail["trials"]]


def asked(app, path):
    """The answer to a GET."""
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "SERVER_NAME": "x", "SERVER_PORT": "80"}
    environ |= {
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": io.StringIO(),
        "wsgi.url_scheme": "http",
    }
    return json.loads(b"".join(app(environ, lambda line, headers, *rest: None)))
