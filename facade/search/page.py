"""The report of a search as one page of HTML, which looks like the report on a run and fetches nothing."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ...callbacks.report.page import STYLE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_MORE_STYLE = """
img { max-width: 100%; display: block; margin: 0 auto; background: #ffffff; border-radius: 8px; }
td { overflow-wrap: anywhere; } .best td { font-weight: 650; } section.card { margin-bottom: 12px; }
section.card h2 { margin-bottom: 8px; } .charts .card:first-child { grid-column: auto; }
"""
_OBJECTIVE = re.compile(r"objective(_\d+)?")
"""The columns that say what a value is."""
_PLACES = ("folder", "log")


def render(
    study: Any,
    names: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    best: Sequence[Any],
    importances: Sequence[Mapping[str, float]],
    pictures: Mapping[str, bytes | str],
) -> str:
    """Make the page.

    Args:
        study: of optuna.
        names: the objectives, such as `eval_loss`.
        rows: a row for each trial, by the names of `trials.csv`.
        best: the best trials.
        importances: how much each parameter counts, for each objective.
        pictures: PNG files by name, or why there is none.
    """
    directions = [one.name.lower() for one in study.directions]
    numbers = {trial.number for trial in best}
    named = [_renamed(row, names) for row in rows]
    parts = [
        _header(study, rows, directions, names),
        _tiles(rows, best, directions, names),
        _section("Best trial" if len(numbers) == 1 else "Best trials", _best(named, numbers)),
        _pictures(names, importances, pictures),
        _section("All trials", _table([_without_places(row) for row in named], numbers)) if rows else "",
    ]
    title = escape(study.study_name)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title} · search report</title><style>{STYLE}{_MORE_STYLE}</style></head><body><main>"
        f"{''.join(parts)}<footer>Written by lightrainer. All values are in trials.csv.</footer></main></body></html>\n"
    )


def _header(study: Any, rows: Sequence[Mapping[str, Any]], directions: list[str], names: Sequence[str]) -> str:
    states = [str(row["state"]).lower() for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "none"
    goals = ", ".join(f"{word} {name}" for word, name in zip(directions, names, strict=True))
    status = "running" if "running" in states else "finished"
    return (
        f'<header><h1>{escape(study.study_name)}</h1><span class="pill {status}">{status}</span>'
        f"<p>{escape(goals)} · {len(rows)} trials: {escape(counts)}</p></header>"
    )


def _tiles(rows: Sequence[Any], best: Sequence[Any], directions: list[str], names: Sequence[str]) -> str:
    tiles = []
    for index, (word, name) in enumerate(zip(directions, names, strict=True)):
        choose = min if word == "minimize" else max
        found = choose(best, key=lambda trial: trial.values[index], default=None)
        value = "none yet" if found is None else _shown(found.values[index])
        small = "" if found is None else f"<small>trial {found.number}</small>"
        tiles.append(f'<div class="tile"><span>{escape(f"{name} ({word})")}</span><b>{value}</b>{small}</div>')
    seconds = sum(row["seconds"] or 0 for row in rows)
    tiles.append(f'<div class="tile"><span>Trials</span><b>{len(rows)}</b></div>')
    tiles.append(f'<div class="tile"><span>Time in trials</span><b>{seconds:,.0f} s</b></div>')
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _best(rows: Sequence[Mapping[str, Any]], numbers: set[int]) -> str:
    """What the best trials have, and where it is."""
    found = [row for row in rows if row["trial"] in numbers]
    if not found:
        return "<p>No trial was completed.</p>"
    if len(found) > 1:
        return _table(found, set())
    pairs = "".join(f"<tr><th>{escape(k)}</th><td>{escape(_shown(v))}</td></tr>" for k, v in found[0].items())
    return f'<div class="scroll"><table class="pairs">{pairs}</table></div>'


def _pictures(
    names: Sequence[str], importances: Sequence[Mapping[str, float]], pictures: Mapping[str, bytes | str]
) -> str:
    figures = "".join(_figure(_title(name, names), picture) for name, picture in pictures.items())
    for index, shares in enumerate(importances):
        name = "importances" if len(importances) == 1 else f"importances_{index}"
        if shares and not isinstance(pictures.get(name), bytes):
            lines = [{"parameter": parameter, "importance": value} for parameter, value in shares.items()]
            title = escape(_title(name, names))
            figures += f'<figure class="card"><h2>{title}</h2>{_table(lines, set())}</figure>'
    return f'<div class="charts">{figures}</div>' if figures else ""


def _figure(title: str, picture: bytes | str) -> str:
    if isinstance(picture, bytes):
        data = base64.b64encode(picture).decode()
        inside = f'<img alt="{escape(title)}" src="data:image/png;base64,{data}">'
    else:
        inside = f"<p>No picture: {escape(picture)}.</p>"
    return f'<figure class="card"><figcaption><h2>{escape(title)}</h2></figcaption>{inside}</figure>'


def _title(name: str, names: Sequence[str]) -> str:
    """The name of a picture in words; with several objectives, which of them it is about."""
    kind, _, index = name.rpartition("_")
    text = (kind if index.isdigit() else name).replace("_", " ").capitalize()
    return f"{text} for {names[int(index)]}" if index.isdigit() else text


def _renamed(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A row with each value under the name of its objective; what the objectives are, stands above."""
    titles = {f"value_{index}": name for index, name in enumerate(names)} | {"value": names[0]}
    kept = {name: value for name, value in row.items() if not _OBJECTIVE.fullmatch(name)}
    return {titles.get(name, name): value for name, value in kept.items()}


def _without_places(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the names of its folder and its log, without the way to them, which is the same for all."""
    return {
        name: str(value).rstrip("/").rpartition("/")[2] if name in _PLACES and value else value
        for name, value in row.items()
    }


def _section(title: str, inside: str) -> str:
    return f'<section class="card"><h2>{escape(title)}</h2>{inside}</section>'


def _table(rows: Iterable[Mapping[str, Any]], best: set[int]) -> str:
    rows = list(rows)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr{' class=best' if row.get('trial') in best else ''}>"
        + "".join(f"<td>{escape(_shown(row.get(name)))}</td>" for name in columns)
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
