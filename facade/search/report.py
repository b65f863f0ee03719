"""What came out of a study, as files to look at: a table, a page, and optuna's own pictures."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_PLOTS = {
    "history": "plot_optimization_history",
    "importances": "plot_param_importances",
    "intermediate_values": "plot_intermediate_values",
    "slices": "plot_slice",
}
"""Pictures of studies with one objective, by optuna's functions for them."""
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 } th, td { padding: .25em .8em; text-align: right }
th { border-bottom: 2px solid #888 } tr:nth-child(even) { background: #f4f4f6 } .best { font-weight: bold }
img { max-width: 100% }
"""


def write_report(study: Any, folder: str | os.PathLike[str]) -> Path:
    """Write `report.html`, `trials.csv`, `best.json` and a PNG for each picture; the reference has no such thing.

    The page holds everything, pictures too, and needs no network. Pictures need matplotlib; without it, and for trials
    that do not give enough for one, the page says so. With plotly installed there is `plots.html` besides, with the
    same pictures to move about in.

    Args:
        study: of optuna.
        folder: made if need be; what is in it from an earlier report is replaced.

    Returns:
        The page.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = table(study)
    importances = importance_of(study)
    _write(folder / "best.json", json.dumps(_best(study, importances), indent=2, default=str) + "\n")
    _write(folder / "trials.csv", _as_csv(rows))
    pictures = {name: _picture(study, function) for name, function in _PLOTS.items()}
    for name, picture in pictures.items():
        if isinstance(picture, bytes):
            (folder / f"{name}.png").write_bytes(picture)
    page = folder / "report.html"
    _write(page, _page(study, rows, importances, pictures))
    _write_plotly(study, folder / "plots.html")
    logger.info("The report of the search is in %s.", page)
    return page


def table(study: Any) -> list[dict[str, Any]]:
    """A row for each trial: number, state, values, seconds, steps reported, and its parameters."""
    several = len(study.directions) > 1
    rows = []
    for trial in study.get_trials(deepcopy=False):
        values = trial.values or []
        named = {f"value_{index}": value for index, value in enumerate(values)} if several else {}
        plain = {} if several else {"value": values[0] if values else None}
        seconds = None if trial.duration is None else round(trial.duration.total_seconds(), 2)
        reports = len(trial.intermediate_values)
        rows.append(
            {"trial": trial.number, "state": trial.state.name, **plain, **named, "seconds": seconds, "reports": reports}
            | trial.params
        )
    return rows


def importance_of(study: Any) -> dict[str, float]:
    """How much of the differences between trials each parameter makes, from 1 to 0; empty where nobody can say."""
    import optuna

    if len(study.directions) > 1:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about trials that are too few, or too equal
        try:
            return dict(optuna.importance.get_param_importances(study))
        except Exception as error:  # too few trials, or a package that an evaluator needs
            logger.info("No importances: %s", error)
            return {}


def _best(study: Any, importances: dict[str, float]) -> dict[str, Any]:
    best = study.best_trials if _completed(study) else []
    return {
        "study": study.study_name,
        "directions": [one.name.lower() for one in study.directions],
        "trials": len(study.get_trials(deepcopy=False)),
        "best": [{"trial": one.number, "values": list(one.values), "parameters": dict(one.params)} for one in best],
        "importances": importances,
    }


def _completed(study: Any) -> list[Any]:
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _as_csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _picture(study: Any, function: str) -> bytes | str:
    """A PNG, or why there is none."""
    if len(study.directions) > 1:
        return "there are several objectives"
    try:
        from optuna.visualization import matplotlib as plots
    except ImportError:
        return "it needs matplotlib: pip install matplotlib"
    try:
        return _drawn(getattr(plots, function), study)
    except ImportError as error:
        return f"it needs a package that is not installed ({error})"
    except Exception as error:  # too few trials, each plot says so in its own way
        return str(error).partition("\n")[0] or type(error).__name__


def _drawn(plot: Callable[[Any], Any], study: Any) -> bytes:
    from matplotlib import pyplot

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these functions call themselves experimental, and complain about the layout
        axes = plot(study)
        figure = axes.figure if hasattr(axes, "figure") else axes.flat[0].figure
        data = io.BytesIO()
        figure.savefig(data, format="png", dpi=110, bbox_inches="tight")
        pyplot.close(figure)
    return data.getvalue()


def _write_plotly(study: Any, path: Path) -> None:
    try:
        import plotly  # type: ignore[import-not-found]  # noqa: F401
        from optuna import visualization
    except ImportError:
        return
    parts: list[str] = []
    for function in _PLOTS.values() if len(study.directions) == 1 else ():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                figure = getattr(visualization, function)(study)
            except Exception as error:
                logger.info("No %s: %s", function, error)
                continue
        parts.append(figure.to_html(full_html=False, include_plotlyjs=not parts))  # the library once, no network
    if parts:
        _write(path, "<!doctype html><meta charset='utf-8'>" + "\n".join(parts))


def _page(
    study: Any, rows: list[dict[str, Any]], importances: dict[str, float], pictures: dict[str, bytes | str]
) -> str:
    best = {trial.number for trial in study.best_trials} if _completed(study) else set()
    states = dict.fromkeys(row["state"] for row in rows)
    counts = ", ".join(f"{sum(row['state'] == state for row in rows)} {state.lower()}" for state in states)
    parts = [
        f"<!doctype html><meta charset='utf-8'><title>{html.escape(study.study_name)}</title><style>{_STYLE}</style>",
        f"<h1>{html.escape(study.study_name)}</h1>",
        f"<p>{len(rows)} trials: {counts or 'none'}. {', '.join(one.name.lower() for one in study.directions)}.</p>",
        "<h2>Best</h2>",
        _html_table([row for row in rows if row["trial"] in best], best) if best else "<p>No trial was completed.</p>",
    ]
    if importances:
        shares = [{"parameter": name, "importance": value} for name, value in importances.items()]
        parts += ["<h2>Importances</h2>", _html_table(shares, set())]
    for name, picture in pictures.items():
        parts.append(f"<h2>{name.replace('_', ' ').capitalize()}</h2>")
        if isinstance(picture, bytes):
            parts.append(f"<img alt='{name}' src='data:image/png;base64,{base64.b64encode(picture).decode()}'>")
        else:
            parts.append(f"<p>No picture: {html.escape(picture)}.</p>")
    return "\n".join([*parts, "<h2>All trials</h2>", _html_table(rows, best)]) + "\n"


def _html_table(rows: list[dict[str, Any]], best: set[int]) -> str:
    columns = _columns(rows)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr{' class=best' if row.get('trial') in best else ''}>"
        + "".join(f"<td>{html.escape(_shown(row.get(name)))}</td>" for name in columns)
        + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.partial")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)
