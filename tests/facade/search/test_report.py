"""The report of a study: what is in the files, with one objective and with several; and the dashboard beside it."""

import io
import json
import re
import warnings

import optuna
import pytest
from small_searches import random_sampler, searcher, space

from lightrainer.callbacks.report.page import STYLE
from lightrainer.facade.search.report import importances_of, table, write_report
from lightrainer.facade.search.retries import FOLDER
from lightrainer.facade.search.storages import open_storage

PNG = b"\x89PNG"


def studied(directions, trials=12, storage=None):
    """A study in which `a` counts for the first objective, and `b` for the second."""

    def objective(trial):
        a, b = trial.suggest_float("a", 0, 1), trial.suggest_float("b", 0, 1)
        trial.report(a, 1) if len(directions) == 1 else None
        return [a**2 + 0.01 * b, b**2 + 0.01 * a][: len(directions)]

    study = optuna.create_study(directions=directions, sampler=random_sampler(), storage=storage, study_name="shown")
    study.optimize(objective, n_trials=trials)
    return study


def named(study, names):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optuna calls this experimental
        study.set_metric_names(names)


def test_one_objective(tmp_path):
    study = studied(["minimize"])
    page = write_report(study, tmp_path / "report").read_text()
    names = {path.name for path in (tmp_path / "report").iterdir()}
    pictures = {"history.png", "importances.png", "intermediate_values.png", "slices.png"}
    assert names == {"report.html", "trials.csv", "best.json", "plots.html"} | pictures
    assert all((tmp_path / "report" / name).read_bytes().startswith(PNG) for name in pictures)
    best = json.loads((tmp_path / "report" / "best.json").read_text())
    assert best["best"] == [
        {"trial": study.best_trial.number, "values": [study.best_value], "parameters": study.best_params}
    ]
    assert best["importances"]["a"] > best["importances"]["b"]
    assert page.count("<img") == 4
    assert len((tmp_path / "report" / "trials.csv").read_text().splitlines()) == 13
    assert "http" not in page.replace("http://www.w3.org", "").replace("http-equiv", "")  # nothing is fetched


def test_the_page_names_metrics_directions_and_folders_and_shows_each_picture_once(tmp_path):
    study = studied(["minimize", "maximize"])
    named(study, ["eval_loss", "accuracy"])
    page = write_report(study, tmp_path).read_text()
    for words in ("eval_loss (minimize)", "accuracy (maximize)", "minimize eval_loss, maximize accuracy"):
        assert words in page
    for words in ("History for eval_loss", "Slices for accuracy", "<th>eval_loss</th>", "<th>accuracy</th>"):
        assert page.count(words) >= 1, words
    pictures = re.findall(r'src="(data:image/png[^"]+)"', page)
    assert len(pictures) == len(set(pictures)) == 7
    assert page.count("Importances for accuracy</h2>") == 1
    assert STYLE in page
    assert "Content-Security-Policy" in page


def test_the_page_says_where_the_best_trial_is(tmp_path):
    study = optuna.create_study(study_name="mine")
    named(study, ["eval_loss"])

    def objective(trial):
        trial.set_user_attr(FOLDER, f"/runs/run-{trial.number}")
        return trial.suggest_float("rate", 0, 1)

    study.optimize(objective, n_trials=3)
    page = write_report(study, tmp_path).read_text()
    assert f"<th>folder</th><td>/runs/run-{study.best_trial.number}</td>" in page
    assert "<td>run-0</td>" in page
    assert "<h2>Best trial</h2>" in page


def test_several_objectives_have_a_front_and_pictures_of_each(tmp_path):
    study = studied(["minimize", "maximize"])
    page = write_report(study, tmp_path).read_text()
    names = {path.stem for path in tmp_path.glob("*.png")}
    each = {f"{kind}_{index}" for kind in ("history", "importances", "slices") for index in (0, 1)}
    assert names == {"pareto_front"} | each
    first, second = importances_of(study)
    assert first["a"] > first["b"]
    assert second["b"] > second["a"]
    assert "Importances for objective 1" in page
    assert {"value_0", "value_1"} <= set(table(study)[0])
    moving = (tmp_path / "plots.html").read_text()
    assert moving.count("plotly-graph-div") >= 7
    assert "cdn.plot.ly" not in moving[:500]


def test_a_study_with_nothing_in_it_says_so(tmp_path):
    page = write_report(studied(["minimize"], trials=0), tmp_path).read_text()
    assert "No trial was completed." in page
    assert "<img" not in page
    assert not [*tmp_path.glob("*.png"), *tmp_path.glob("plots.html")]


@pytest.mark.parametrize("name", ["study.db", "study.log"])
def test_the_dashboard_shows_the_storage(tmp_path, name):
    """The app that `optuna-dashboard` serves, asked as its page asks it."""
    dashboard = pytest.importorskip("optuna_dashboard", exc_type=ImportError)
    address = str(tmp_path / name) if name.endswith(".log") else f"sqlite:///{tmp_path / name}"
    made = searcher(tmp_path / "out")
    best = made.hyperparameter_search(space, n_trials=2, sampler=random_sampler(), storage=address, study_name="mine")
    app = dashboard.wsgi(open_storage(address))
    (summary,) = asked(app, "/api/studies")["study_summaries"]
    assert summary["study_name"] == "mine"
    detail = asked(app, f"/api/studies/{summary['study_id']}")
    assert [trial["state"] for trial in detail["trials"]] == ["Complete", "Complete"]
    assert best.objective in [trial["values"][0] for trial in detail["trials"]]


def asked(app, path):
    """The answer to a GET."""
    status = []
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "SERVER_NAME": "x", "SERVER_PORT": "80"}
    environ |= {"wsgi.input": io.BytesIO(), "wsgi.errors": io.StringIO(), "wsgi.url_scheme": "http"}
    body = b"".join(app(environ, lambda line, headers, *rest: status.append(line)))
    assert status[0].startswith("200"), status
    return json.loads(body)
