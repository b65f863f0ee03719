"""The report of a study: a page with optuna's pictures, a table of its trials, and the best of them."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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

logger = logging.getLogger(__name__)

_PICTURES = ("optimization_history", "parallel_coordinate", "slice", "param_importances")
"""Functions of `optuna.visualization` that show one objective."""

Row = dict[str, Any]
"""A trial: a value for each column of `trials.csv`."""


def write_report(study: Study, folder: str | os.PathLike[str]) -> Path:
    """Write `report.html`, `trials.csv` and `best.json`; the reference has no such thing.

    The page is one file that needs no network. It has optuna's pictures where plotly is installed.

    Args:
        study: of optuna.
        folder: is created if needed; files of an earlier report are replaced.

    Returns:
        The page.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = table(study)
    best = _best_trials(study)
    summary = json.dumps(_summary(study, best), indent=2, default=str, allow_nan=False)
    write_whole(folder / "best.json", f"{summary}\n".encode())
    write_whole(folder / "trials.csv", _as_csv(rows).encode())
    page = folder / "report.html"
    write_whole(page, _page(study, rows, {trial.number for trial in best}, folder).encode())
    logger.info("The report of the search is in %s.", page)
    return page


def table(study: Study) -> list[Row]:
    """Return a row for each trial: number, state, why it failed, objectives, values, seconds, files, parameters."""
    trials = study.get_trials(deepcopy=False)
    retried = interrupted(trials)
    reasons = failures(trials)
    places = places_of(study)
    rows = []
    for trial in trials:
        row: Row = {"trial": trial.number, "state": state_of(trial, retried), "failure": reasons.get(trial.number)}
        row.update(_values(study, trial))
        row["seconds"] = None if trial.duration is None else round(trial.duration.total_seconds(), 2)
        row["reports"] = len(trial.intermediate_values)
        row.update(places.get(trial.number, {}))
        for name, value in trial.params.items():
            column = f"parameter {name}" if name in row else name
            row[column] = value
        rows.append(row)
    return rows


def _values(study: Study, trial: FrozenTrial) -> Row:
    """Return objectives and values of a trial; with several objectives their columns are numbered."""
    values = trial.values or [None] * len(study.directions)
    if len(values) == 1:
        return {"objective": _goals(study)[0], "value": values[0]}
    columns: Row = {f"objective_{index}": goal for index, goal in enumerate(_goals(study))}
    columns.update((f"value_{index}", value) for index, value in enumerate(values))
    return columns


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
    return [f"{direction} {name}" for direction, name in zip(directions, _names(study), strict=True)]


def places_of(study: Study) -> dict[int, dict[str, str]]:
    """Return `folder` and `log` of each trial, if known; for an interrupted one those of its retry."""
    places: dict[int, dict[str, str]] = {}
    for trial in study.get_trials(deepcopy=False):
        own = {}
        if FOLDER in trial.user_attrs:
            own["folder"] = trial.user_attrs[FOLDER]
        if LOG in trial.user_attrs:
            own["log"] = trial.user_attrs[LOG]
        if own:
            for number in (*trial.system_attrs.get("retry_history", []), trial.number):
                places.setdefault(number, {}).update(own)
    return places


def _best_trials(study: Study) -> list[FrozenTrial]:
    """Return the best trial, or for several objectives all that no other one beats; none before one is complete."""
    is_complete = any(trial.state.name == "COMPLETE" for trial in study.get_trials(deepcopy=False))
    return study.best_trials if is_complete else []


def _summary(study: Study, best: Sequence[FrozenTrial]) -> dict[str, Any]:
    """Return the content of `best.json`."""
    trials = study.get_trials(deepcopy=False)
    retried = interrupted(trials)
    importances = [_importances(study, index) for index in range(len(study.directions))]
    return {
        "study": study.study_name,
        "directions": [direction.name.lower() for direction in study.directions],
        "metrics": study.metric_names,
        "trials": len(trials),
        "states": dict(Counter(state_of(trial, retried).lower() for trial in trials)),
        "best": [_best_entry(trial, places_of(study)) for trial in best],
        "importances": importances if len(importances) > 1 else importances[0],
    }


def _best_entry(trial: FrozenTrial, places: Mapping[int, dict[str, str]]) -> dict[str, Any]:
    # JSON has no infinite numbers: they are written as text.
    values = [value if math.isfinite(value) else str(value) for value in trial.values]
    entry: dict[str, Any] = {"trial": trial.number, "values": values}
    entry.update(places.get(trial.number, {}))
    entry["parameters"] = trial.params
    if COMMAND in trial.user_attrs:
        entry["command"] = trial.user_attrs[COMMAND]
    return entry


def _importances(study: Study, objective: int) -> dict[str, float]:
    """Return the importance of each parameter for an objective, from 1 to 0; empty with too few trials."""
    import optuna

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about trials that are too few, or too equal
            shares = optuna.importance.get_param_importances(study, target=_value_at(objective))
    except Exception as error:  # too few trials, or a package that an evaluator needs
        logger.info("No importances: %s", error)
        return {}
    return {name: share for name, share in shares.items() if math.isfinite(share)}


def _value_at(objective: int) -> Callable[[FrozenTrial], float]:
    return lambda trial: trial.values[objective]


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


def _page(study: Study, rows: Sequence[Row], best: set[int], folder: Path) -> str:
    title = escape(f"{study.study_name}: {', '.join(_goals(study))}")
    states = Counter(str(row["state"]).lower() for row in rows)
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    sections = [
        "<!doctype html>",
        f"<meta charset='utf-8'><title>{title}</title>",
        "<style>body { font-family: sans-serif } td, th { padding: 0 1em 0 0; text-align: left }</style>",
        f"<h1>{title}</h1>",
        f"<p>{len(rows)} trials: {escape(counts) or 'none'}. All values are in trials.csv.</p>",
        _section("Best trials", [row for row in rows if row["trial"] in best], folder),
        *_commands(study, best),
        _section("Failed trials", [row for row in rows if row["failure"]], folder),
        *_pictures(study),
        _section("All trials", rows, folder),
    ]
    return "\n".join(sections)


def _section(title: str, rows: Sequence[Row], folder: Path) -> str:
    """Return a table of trials under a heading; nothing without trials."""
    if not rows:
        return ""
    columns = _columns(rows)
    lines = [f"<h2>{title}</h2><table><tr>"]
    lines += [f"<th>{escape(column)}</th>" for column in columns]
    for row in rows:
        lines.append("</tr><tr>")
        lines += [f"<td>{_cell(column, row.get(column), folder)}</td>" for column in columns]
    lines.append("</tr></table>")
    return "\n".join(lines)


def _cell(column: str, value: Any, folder: Path) -> str:
    """Return a value as HTML; a folder or log as a link."""
    if value is None:
        return ""
    if column in ("folder", "log"):
        return f'<a href="{quote(os.path.relpath(value, folder))}">{escape(os.path.basename(value))}</a>'
    return escape(f"{value:.6g}" if isinstance(value, float) else str(value))


def _commands(study: Study, numbers: Iterable[int]) -> list[str]:
    """Return the commands that train trials of a sweep again."""
    trials = study.get_trials(deepcopy=False)
    commands = {number: trials[number].user_attrs.get(COMMAND) for number in sorted(numbers)}
    return [
        f"<p>Train trial {number} again:</p><pre>{escape(command)}</pre>"
        for number, command in commands.items()
        if command is not None
    ]


def _pictures(study: Study) -> list[str]:
    """Return optuna's pictures as HTML; none without plotly."""
    if not is_installed("plotly"):
        return ["<p>pip install plotly for pictures.</p>"]
    calls: list[tuple[str, dict[str, Any]]] = []
    calls.append(("intermediate_values", {}) if len(study.directions) == 1 else ("pareto_front", {}))
    for index, name in enumerate(_names(study)):
        calls += [(picture, {"target": _value_at(index), "target_name": name}) for picture in _PICTURES]
    parts: list[str] = []
    for picture, options in calls:
        figure = _figure(study, picture, options)
        if figure is not None:
            # The library is written into the page once, with the first picture.
            parts.append(figure.to_html(full_html=False, include_plotlyjs=not parts))
    return parts


def _figure(study: Study, picture: str, options: Mapping[str, Any]) -> Any:
    """Return a figure of plotly; None where the study has too few trials for it, or too many objectives."""
    from optuna import visualization

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(visualization, f"plot_{picture}")(study, **options)
    except Exception as error:
        logger.info("No %s: %s", picture, error)
        return None
