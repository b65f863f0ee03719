"""The report of a study: a page with optuna's pictures and tables of its trials, and the same in
CSV and JSON.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ...callbacks._files import write_whole
from ...lightning_modules.common.libraries import is_installed
from .retries import COMMAND, FOLDER, LOG, failures, interrupted, state_of

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial
    from plotly.graph_objects import Figure

logger = logging.getLogger(__name__)

_PICTURES = ("optimization_history", "parallel_coordinate", "slice", "param_importances")
"""Functions of `optuna.visualization` that show one objective."""

Row = dict[str, Any]
"""A trial: a value for each column of `trials.csv`."""


def require_plotly() -> None:
    """Check that the library is installed that draws reports.

    Raises:
        ImportError: it is not; says how to install it.
    """
    if not is_installed("plotly"):
        raise ImportError(
            'plotly draws the report, and is not installed: pip install "lightrainer[search]"'
        )


def write_report(study: Study, folder: str | os.PathLike[str]) -> Path:
    """Write `trials.csv`, `best.json` and `report.html`; the reference has no such thing.

    The page is one file that needs no network.

    Args:
        study: of optuna.
        folder: is created if needed; files of an earlier report are replaced.

    Returns:
        The page.

    Raises:
        ImportError: plotly is not installed; the other files are written without it.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = table(study)
    best = study.best_trials
    summary = json.dumps(_summary(study, best), indent=2, default=str, allow_nan=False)
    write_whole(folder / "best.json", f"{summary}\n".encode())
    write_whole(folder / "trials.csv", _as_csv(rows).encode())

    require_plotly()
    best_rows = [rows[trial.number] for trial in best]
    failed_rows = [row for row in rows if row["failure"]]
    figures = [
        *_tables("Best trials", best_rows, folder),
        *_tables("Failed trials", failed_rows, folder),
        *_pictures(study),
        *_tables("All trials", rows, folder),
    ]
    page = folder / "report.html"
    write_whole(page, _page(study, figures).encode())
    logger.info("The report of the search is in %s.", page)
    return page


def table(study: Study) -> list[Row]:
    """Return a row for each trial: number, state, why it failed, objectives, values, seconds,
    files, parameters.
    """
    trials = study.get_trials(deepcopy=False)
    retried = interrupted(trials)
    reasons = failures(trials)
    goals = ", ".join(_goals(study))
    rows = []
    for trial in trials:
        row: Row = {
            "trial": trial.number,
            "state": state_of(trial, retried),
            "failure": reasons.get(trial.number),
            "objective": goals,
        }
        values = trial.values or [None] * len(study.directions)
        for index, value in enumerate(values):
            row["value" if len(values) == 1 else f"value_{index}"] = value
        row["seconds"] = (
            None if trial.duration is None else round(trial.duration.total_seconds(), 2)
        )
        row["reports"] = len(trial.intermediate_values)
        row.update(places_of(trial))
        for name, value in trial.params.items():
            row[f"parameter {name}" if name in row else name] = value
        rows.append(row)
    return rows


def places_of(trial: FrozenTrial) -> dict[str, str]:
    """Return `folder`, `log` and `command` of a trial, as far as they are known."""
    attributes = {"folder": FOLDER, "log": LOG, "command": COMMAND}
    return {
        name: trial.user_attrs[key] for name, key in attributes.items() if key in trial.user_attrs
    }


def _names(study: Study) -> list[str]:
    """Return the names of the objectives, such as `accuracy`; their numbers if they have none."""
    if study.metric_names:
        return list(study.metric_names)
    if len(study.directions) == 1:
        return ["the objective"]
    return [f"objective {index}" for index in range(len(study.directions))]


def _goals(study: Study) -> list[str]:
    """Return the objectives with their directions, such as `maximize accuracy`."""
    directions = [direction.name.lower() for direction in study.directions]
    return [
        f"{direction} {name}" for direction, name in zip(directions, _names(study), strict=True)
    ]


def _summary(study: Study, best: Sequence[FrozenTrial]) -> dict[str, Any]:
    """Return the content of `best.json`."""
    trials = study.get_trials(deepcopy=False)
    retried = interrupted(trials)
    entries = []
    for trial in best:
        # JSON has no infinite numbers: they are written as text.
        values = [value if math.isfinite(value) else str(value) for value in trial.values]
        entries.append(
            {
                "trial": trial.number,
                "values": values,
                **places_of(trial),
                "parameters": trial.params,
            }
        )
    return {
        "study": study.study_name,
        "directions": [direction.name.lower() for direction in study.directions],
        "metrics": study.metric_names,
        "trials": len(trials),
        "states": dict(Counter(state_of(trial, retried).lower() for trial in trials)),
        "best": entries,
    }


def _as_csv(rows: Iterable[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _columns(rows: Iterable[Row]) -> list[str]:
    """Return the columns that any row has, in the order of their first appearance."""
    columns: dict[str, None] = {}
    for row in rows:
        columns.update(dict.fromkeys(row))
    return list(columns)


# --- the page


def _page(study: Study, figures: Sequence[Figure]) -> str:
    title = escape(f"{study.study_name}: {', '.join(_goals(study))}")
    parts = [f"<!doctype html><meta charset='utf-8'><title>{title}</title><h1>{title}</h1>"]
    for figure in figures:
        is_first = len(parts) == 1  # the library is written into the page once
        parts.append(figure.to_html(full_html=False, include_plotlyjs=is_first))
    return "\n".join(parts)


def _tables(title: str, rows: Sequence[Row], folder: Path) -> list[Figure]:
    """Return a table of trials; none without trials."""
    from plotly import graph_objects

    if not rows:
        return []
    columns = _columns(rows)
    cells = [[_cell(column, row.get(column), folder) for row in rows] for column in columns]
    header = {"values": [escape(column) for column in columns]}
    figure = graph_objects.Figure(graph_objects.Table(header=header, cells={"values": cells}))
    return [figure.update_layout(title=title)]


def _cell(column: str, value: Any, folder: Path) -> str:
    """Return a value as text for plotly; a folder or log as a link."""
    if value is None:
        return ""
    if column in ("folder", "log"):
        link = quote(os.path.relpath(value, folder))
        return f'<a href="{link}">{escape(os.path.basename(value))}</a>'
    return escape(f"{value:.6g}" if isinstance(value, float) else str(value))


def _pictures(study: Study) -> list[Figure]:
    """Return optuna's pictures, without those for which the study has too few trials, or too
    many objectives.
    """
    from optuna import visualization

    calls = [
        partial(visualization.plot_intermediate_values, study),
        partial(visualization.plot_pareto_front, study),
    ]
    for index, name in enumerate(_names(study)):
        for picture in _PICTURES:
            plot = getattr(visualization, f"plot_{picture}")
            calls.append(partial(plot, study, target=partial(_value, index), target_name=name))

    figures = []
    for call in calls:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                figures.append(call())
        except Exception as error:
            logger.info("No %s: %s", call.func.__name__, error)
    return figures


def _value(objective: int, trial: FrozenTrial) -> float:
    return trial.values[objective]
