"""The report of a study: an HTML page with plots, and a CSV file with all trials."""

from __future__ import annotations

import csv
import io
import itertools
import logging
import os
import warnings
from collections.abc import Iterator
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...callbacks._files import write_atomically
from ...lightning_modules.common.libraries import is_installed
from .metric_objective import describe_goal, directions_of, objective_names
from .retries import COMMAND, FOLDER, LOG, failure_reasons, state_of

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial
    from plotly.graph_objects import Figure

logger = logging.getLogger(__name__)

Row = dict[str, Any]
"""A row of `trials.csv`: the values of a trial by column."""


def write_report(study: Study, folder: str | os.PathLike[str]) -> Path:
    """Write `trials.csv` and `report.html`; transformers has no counterpart.

    The page is a single file that works offline.

    Args:
        study: the study.
        folder: created if needed; files of an earlier report are replaced.

    Returns:
        The path of the page.

    Raises:
        ImportError: plotly, which draws the plots, is not installed; `trials.csv` has been written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = table(study)
    columns = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(folder / "trials.csv", text.getvalue().encode())

    if not is_installed("plotly"):
        raise ImportError(
            "plotly, which draws the plots of the report, is not installed: pip install "
            '"lightrainer[search]"'
        )
    page = folder / "report.html"
    write_atomically(page, _page(study).encode())
    logger.info("The report of the search is in %s.", page)
    return page


def table(study: Study) -> list[Row]:
    """Return a row for each trial, with its parameters as the last columns."""
    trials = study.get_trials(deepcopy=False)
    reasons = failure_reasons(trials)
    goal = _goal(study)
    rows = []
    for trial in trials:
        row: Row = {
            "trial": trial.number,
            "state": state_of(trial, reasons),
            "failure": reasons.get(trial.number),
            "objective": goal,
        }
        # A trial that did not complete has no values.
        values = trial.values or [None] * len(study.directions)
        for index, value in enumerate(values):
            column = "value" if len(values) == 1 else f"value_{index}"
            row[column] = value
        if trial.duration is not None:
            row["seconds"] = round(trial.duration.total_seconds(), 2)
        row.update(locations_of(trial))

        # A parameter may have the name of another column.
        for name, value in trial.params.items():
            column = f"parameter {name}" if name in row else name
            row[column] = value
        rows.append(row)
    return rows


def locations_of(trial: FrozenTrial) -> dict[str, str]:
    """Return `folder`, `log` and `command` of a trial, if they were recorded."""
    locations = {}
    for name, attribute in (("folder", FOLDER), ("log", LOG), ("command", COMMAND)):
        if attribute in trial.user_attrs:
            locations[name] = trial.user_attrs[attribute]
    return locations


def _goal(study: Study) -> str:
    """Return the objectives with their directions, such as `maximize accuracy`."""
    return describe_goal(directions_of(study), study.metric_names or [])


def _page(study: Study) -> str:
    """Return the HTML page with all plots."""
    title = escape(f"{study.study_name}: {_goal(study)}")
    parts = [f"<!doctype html><meta charset='utf-8'><title>{title}</title><h1>{title}</h1>"]
    for figure in _plots(study):
        # Write the JavaScript of plotly into the page only once, with the first figure.
        is_first = len(parts) == 1
        parts.append(figure.to_html(full_html=False, include_plotlyjs=is_first))
    return "\n".join(parts)


def _plots(study: Study) -> Iterator[Figure]:
    """Yield Optuna's plots, except those for which the study has too few trials or objectives."""
    from optuna import visualization

    plots = [
        partial(visualization.plot_intermediate_values, study),
        partial(visualization.plot_pareto_front, study),
    ]
    names = objective_names(study.metric_names or [], len(study.directions))
    for index, name in enumerate(names):
        objective = {"target": partial(_objective_value, index), "target_name": name}
        for plot in (
            visualization.plot_optimization_history,
            visualization.plot_parallel_coordinate,
            visualization.plot_slice,
            visualization.plot_param_importances,
        ):
            plots.append(partial(plot, study, **objective))

    # A plot raises if the study has too few trials, or another number of objectives.
    for plot in plots:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield plot()
        except Exception as error:
            logger.info("The report has no %s: %s", plot.func.__name__, error)


def _objective_value(index: int, trial: FrozenTrial) -> float:
    """Return one of the objectives of a trial."""
    return trial.values[index]
