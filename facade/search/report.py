"""The report of a study: a table, a page, and optuna's own pictures."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from ...lightning_modules.common.libraries import is_installed
from .page import render
from .retries import COMMAND, FOLDER, LOG, failures, interrupted, state_of

logger = logging.getLogger(__name__)


def write_report(study: Any, folder: str | os.PathLike[str]) -> Path:
    """Write `report.html`, `trials.csv` and `best.json`; the reference has no such thing.

    The page holds everything, pictures too, and needs no network. With plotly installed there is `plots.html` besides,
    with optuna's own pictures to move about in.

    Args:
        study: of optuna.
        folder: made if need be; what is in it from an earlier report is replaced.

    Returns:
        The page.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = table(study)
    importances = importances_of(study)
    _write(folder / "best.json", json.dumps(_best(study, importances), indent=2, default=str) + "\n")
    _write(folder / "trials.csv", _as_csv(rows))
    page = folder / "report.html"
    best = study.best_trials if _completed(study) else []
    _write(page, render(study, objectives_of(study), rows, best, importances, commands_of(study), folder))
    moving = interactive(study)
    if moving is not None:
        _write(folder / "plots.html", moving)
    logger.info("The report of the search is in %s.", page)
    return page


def table(study: Any) -> list[dict[str, Any]]:
    """Return a row for each trial: number, state, why it failed, objectives, values, seconds, files, parameters."""
    several = len(study.directions) > 1
    words = [one.name.lower() for one in study.directions]
    goals = [f"{word} {name}" for word, name in zip(words, objectives_of(study), strict=True)]
    objectives = {f"objective_{index}" if several else "objective": goal for index, goal in enumerate(goals)}
    rows, places = [], places_of(study)
    trials = study.get_trials(deepcopy=False)
    passed_on, reasons = interrupted(trials), failures(trials)
    for trial in trials:
        values = trial.values or []
        named = {f"value_{index}": value for index, value in enumerate(values)} if several else {}
        plain = {} if several else {"value": values[0] if values else None}
        seconds = None if trial.duration is None else round(trial.duration.total_seconds(), 2)
        reports = len(trial.intermediate_values)
        state = {"state": state_of(trial, passed_on), "failure": reasons.get(trial.number)}
        row = {"trial": trial.number, **state, **objectives, **plain, **named}
        row |= {"seconds": seconds, "reports": reports, **places.get(trial.number, {})}
        rows.append(row | {f"parameter {name}" if name in row else name: it for name, it in trial.params.items()})
    return rows


def objectives_of(study: Any) -> list[str]:
    """Return the names of the objectives, such as `accuracy`; their numbers if they have none."""
    count = len(study.directions)
    unnamed = [f"objective {index}" for index in range(count)] if count > 1 else ["the objective"]
    return study.metric_names or unnamed


def places_of(study: Any) -> dict[int, dict[str, str]]:
    """Return `folder` and `log` of each trial, if known; for an interrupted one those of its retry."""
    trials = study.get_trials(deepcopy=False)
    found: dict[int, dict[str, str]] = {}
    for trial in trials:
        attrs = trial.user_attrs
        own = {word: attrs[name] for word, name in (("folder", FOLDER), ("log", LOG)) if name in attrs}
        for number in (*trial.system_attrs.get("retry_history", []), trial.number):
            found[number] = {**found.get(number, {}), **own}
    return {number: places for number, places in found.items() if places}


def commands_of(study: Any) -> dict[int, str]:
    """Return the commands that train the trials of a sweep once more, by their numbers."""
    trials = study.get_trials(deepcopy=False)
    return {one.number: one.user_attrs[COMMAND] for one in trials if COMMAND in one.user_attrs}


def importances_of(study: Any) -> list[dict[str, float]]:
    """Return the importance of each parameter, from 1 to 0, for each objective; empty with too few trials."""
    return [_importances(study, index) for index in range(len(study.directions))]


def _importances(study: Any, objective: int) -> dict[str, float]:
    import optuna

    several = len(study.directions) > 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about trials that are too few, or too equal
        try:
            target = (lambda trial: trial.values[objective]) if several else None
            return dict(optuna.importance.get_param_importances(study, target=target))
        except Exception as error:  # too few trials, or a package that an evaluator needs
            logger.info("No importances: %s", error)
            return {}


def _best(study: Any, importances: list[dict[str, float]]) -> dict[str, Any]:
    best, places = study.best_trials if _completed(study) else [], places_of(study)
    trials = study.get_trials(deepcopy=False)
    passed_on, commands = interrupted(trials), commands_of(study)
    return {
        "study": study.study_name,
        "directions": [one.name.lower() for one in study.directions],
        "metrics": study.metric_names,
        "trials": len(trials),
        "states": dict(Counter(state_of(trial, passed_on).lower() for trial in trials)),
        "best": [
            {"trial": one.number, "values": list(one.values)}
            | places.get(one.number, {})
            | {"parameters": dict(one.params)}
            | ({"command": commands[one.number]} if one.number in commands else {})
            for one in best
        ],
        "importances": importances if len(importances) > 1 else importances[0],
    }


def _completed(study: Any) -> list[Any]:
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]


def _as_csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.partial")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


_OF_AN_OBJECTIVE = ("optimization_history", "param_importances", "slice", "parallel_coordinate")
"""Pictures of optuna that show one objective."""


def interactive(study: Any) -> str | None:
    """Return a page with optuna's pictures by plotly, which needs no network; None without plotly or pictures."""
    if not is_installed("plotly") or not _completed(study):
        return None
    from optuna import visualization

    goals = objectives_of(study)
    calls: list[tuple[str, dict[str, Any]]] = [("pareto_front" if len(goals) > 1 else "intermediate_values", {})]
    for index, goal in enumerate(goals):
        options = {"target": lambda trial, index=index: trial.values[index], "target_name": goal}
        calls += [(name, options) for name in _OF_AN_OBJECTIVE]
    parts: list[str] = []
    for name, options in calls:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                figure = getattr(visualization, f"plot_{name}")(study, **options)
            except Exception as error:  # too few trials, or more than three objectives
                logger.info("No %s: %s", name, error)
                continue
        parts.append(figure.to_html(full_html=False, include_plotlyjs=not parts))  # the library once
    return "<!doctype html><meta charset='utf-8'>" + "\n".join(parts) if parts else None
