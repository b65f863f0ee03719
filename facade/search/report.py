"""The report of a study: an HTML page with plots and tables, a CSV file and a JSON file."""

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
from .retries import COMMAND, FOLDER, LOG, failure_reasons, interrupted, state_of

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial
    from plotly.graph_objects import Figure

logger = logging.getLogger(__name__)

_PLOTS = ("optimization_history", "parallel_coordinate", "slice", "param_importances")
"""Plots of `optuna.visualization` that show one objective."""

Row = dict[str, Any]
"""The values of a trial for the columns of `trials.csv`."""


def require_plotly() -> None:
    """Check that plotly, which draws the plots, is installed.

    Raises:
        ImportError: it is not installed; the message says how to install it.
    """
    if not is_installed("plotly"):
        raise ImportError(
            "plotly, which draws the plots of the report, is not installed: pip install "
            '"lightrainer[search]"'
        )


def write_report(study: Study, folder: str | os.PathLike[str]) -> Path:
    """Write `trials.csv`, `best.json` and `report.html`; transformers has no counterpart.

    The page is a single file that works without a network.

    Args:
        study: the study.
        folder: created if needed; files of an earlier report are replaced.

    Returns:
        The path of the page.

    Raises:
        ImportError: plotly is not installed; the other files have been written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = table(study)
    best = study.best_trials

    # The data.
    summary = json.dumps(_summary(study, best), indent=2, default=str, allow_nan=False)
    write_whole(folder / "best.json", f"{summary}\n".encode())
    write_whole(folder / "trials.csv", _as_csv(rows).encode())

    # The page.
    require_plotly()
    best_rows = [rows[trial.number] for trial in best]
    failed_rows = [row for row in rows if row["failure"]]
    figures = [
        *_tables("Best trials", best_rows, folder),
        *_tables("Failed trials", failed_rows, folder),
        *_plots(study),
        *_tables("All trials", rows, folder),
    ]
    page = folder / "report.html"
    write_whole(page, _page(study, figures).encode())
    logger.info("The report of the search is in %s.", page)
    return page


def table(study: Study) -> list[Row]:
    """Return a row for each trial, with its parameters as the last columns."""
    trials = study.get_trials(deepcopy=False)
    interrupted_numbers = interrupted(trials)
    reasons = failure_reasons(trials)
    goals = ", ".join(_goals(study))
    rows = []
    for trial in trials:
        row: Row = {
            "trial": trial.number,
            "state": state_of(trial, interrupted_numbers),
            "failure": reasons.get(trial.number),
            "objective": goals,
        }
        # A trial that did not complete has no values.
        values = trial.values or [None] * len(study.directions)
        for index, value in enumerate(values):
            column = "value" if len(values) == 1 else f"value_{index}"
            row[column] = value

        seconds = None
        if trial.duration is not None:
            seconds = round(trial.duration.total_seconds(), 2)
        row["seconds"] = seconds
        row["reports"] = len(trial.intermediate_values)
        row.update(locations_of(trial))

        # A parameter may have the name of another column.
        for name, value in trial.params.items():
            column = f"parameter {name}" if name in row else name
            row[column] = value
        rows.append(row)
    return rows


def locations_of(trial: FrozenTrial) -> dict[str, str]:
    """Return `folder`, `log` and `command` of a trial, as far as they were recorded."""
    locations = {}
    for name, attribute in (("folder", FOLDER), ("log", LOG), ("command", COMMAND)):
        if attribute in trial.user_attrs:
            locations[name] = trial.user_attrs[attribute]
    return locations


def _objective_names(study: Study) -> list[str]:
    """Return the names of the objectives, such as `accuracy`, or their numbers without names."""
    if study.metric_names:
        return list(study.metric_names)
    if len(study.directions) == 1:
        return ["the objective"]
    return [f"objective {index}" for index in range(len(study.directions))]


def _goals(study: Study) -> list[str]:
    """Return the objectives with their directions, such as `maximize accuracy`."""
    goals = []
    for direction, name in zip(study.directions, _objective_names(study), strict=True):
        goals.append(f"{direction.name.lower()} {name}")
    return goals


def _summary(study: Study, best: Sequence[FrozenTrial]) -> dict[str, Any]:
    """Return the content of `best.json`."""
    trials = study.get_trials(deepcopy=False)
    interrupted_numbers = interrupted(trials)
    state_counts = Counter(state_of(trial, interrupted_numbers).lower() for trial in trials)

    # With several objectives there may be several best trials.
    best_entries = []
    for trial in best:
        entry = {
            "trial": trial.number,
            "values": [_json_number(value) for value in trial.values],
            **locations_of(trial),
            "parameters": trial.params,
        }
        best_entries.append(entry)

    return {
        "study": study.study_name,
        "directions": [direction.name.lower() for direction in study.directions],
        "metrics": study.metric_names,
        "trials": len(trials),
        "states": dict(state_counts),
        "best": best_entries,
    }


def _json_number(value: float) -> float | str:
    """Return a number for JSON, which has no infinity: that is written as text."""
    return value if math.isfinite(value) else str(value)


def _as_csv(rows: Iterable[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _columns(rows: Iterable[Row]) -> list[str]:
    """Return the columns of all rows, in the order of their first appearance."""
    columns: dict[str, None] = {}
    for row in rows:
        columns.update(dict.fromkeys(row))
    return list(columns)


# --- the page


def _page(study: Study, figures: Sequence[Figure]) -> str:
    """Return the page as HTML."""
    title = escape(f"{study.study_name}: {', '.join(_goals(study))}")
    parts = [f"<!doctype html><meta charset='utf-8'><title>{title}</title><h1>{title}</h1>"]
    for figure in figures:
        # The JavaScript of plotly is written into the page once, with the first figure.
        is_first = len(parts) == 1
        parts.append(figure.to_html(full_html=False, include_plotlyjs=is_first))
    return "\n".join(parts)


def _tables(title: str, rows: Sequence[Row], folder: Path) -> list[Figure]:
    """Return a figure with a table of trials; no figure if there are no trials."""
    from plotly import graph_objects

    if not rows:
        return []

    # Plotly takes the cells column by column.
    columns = _columns(rows)
    cells = []
    for column in columns:
        cells.append([_format_cell(column, row.get(column), folder) for row in rows])
    header = {"values": [escape(column) for column in columns]}
    table = graph_objects.Table(header=header, cells={"values": cells})
    figure = graph_objects.Figure(table)
    return [figure.update_layout(title=title)]


def _format_cell(column: str, value: Any, folder: Path) -> str:
    """Return a value as HTML; a folder or a log as a link relative to the folder of the page."""
    if value is None:
        return ""
    if column in ("folder", "log"):
        link = quote(os.path.relpath(value, folder))
        text = escape(os.path.basename(value))
        return f'<a href="{link}">{text}</a>'
    if isinstance(value, float):
        return f"{value:.6g}"
    return escape(str(value))


def _plots(study: Study) -> list[Figure]:
    """Return optuna's plots, except those for which the study has too few trials or objectives."""
    from optuna import visualization

    plot_calls = [
        partial(visualization.plot_intermediate_values, study),
        partial(visualization.plot_pareto_front, study),
    ]
    for index, objective_name in enumerate(_objective_names(study)):
        value_of = partial(_objective_value, index)
        for plot_name in _PLOTS:
            plot = getattr(visualization, f"plot_{plot_name}")
            plot_calls.append(partial(plot, study, target=value_of, target_name=objective_name))

    # Optuna raises where a study does not have what a plot needs.
    figures = []
    for plot_call in plot_calls:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                figures.append(plot_call())
        except Exception as error:
            logger.info("The report has no %s: %s", plot_call.func.__name__, error)
    return figures


def _objective_value(index: int, trial: FrozenTrial) -> float:
    return trial.values[index]
