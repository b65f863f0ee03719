"""The report of a search as one page of HTML, which looks like the report on a run and fetches nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...callbacks.report.page import document
from .pictures import MOST_AXES, StudyPictures

_STYLE = """
td { overflow-wrap: anywhere; } section.card { margin-bottom: 12px; } section.card h2 { margin-bottom: 8px; }
pre { margin: 4px 0 0; padding: 10px 12px; border-radius: 8px; background: var(--page); white-space: pre-wrap;
  overflow-wrap: anywhere; font-size: 13px; user-select: all; } a { color: var(--c0); }
.charts { margin-bottom: 12px; } .two { display: grid; gap: 4px 40px; grid-template-columns: auto 1fr; }
path[data-trial] { stroke: color-mix(in oklab, var(--c0) var(--share, 20%), var(--edge)); }
path.line[data-trial] { stroke-width: 1.5; } path.dots[data-trial] { stroke-width: 8; }
path.best { stroke: var(--c1) !important; } path.line.best { stroke-width: 3; } path.dots.best { stroke-width: 11; }
path.pruned, path.running { stroke: var(--soft); opacity: 0.35; } path.fail { stroke: var(--bad); opacity: 0.6;
  stroke-dasharray: 5 5; }
.pointing path[data-trial]:not(.on) { opacity: 0.12; } path.on { opacity: 1; stroke: var(--c4) !important; }
path.line.on { stroke-width: 3.5; } path.dots.on { stroke-width: 13; }
tr.best td { font-weight: 650; } tr.on td, .keys .on { background: color-mix(in oklab, var(--c4) 18%, var(--card)); }
.parallel { position: relative; height: 330px; margin: 40px 70px 20px 20px; }
.parallel svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.parallel .grid { stroke: var(--soft); stroke-width: 1.2; opacity: 0.5; }
.parallel b { position: absolute; top: -34px; transform: translateX(-50%); font-size: 12.5px; font-weight: 600;
  max-width: 11em; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.parallel b:first-of-type { transform: translateX(-18px); }
.parallel span { position: absolute; transform: translate(5px, -50%); font-size: 11.5px; line-height: 1.2;
  color: var(--text); background: color-mix(in srgb, var(--card) 75%, transparent); border-radius: 3px; padding: 0 2px;
  pointer-events: none; }
.beside { display: grid; grid-template-columns: 1fr 150px; gap: 12px; } .beside .plot { height: 240px; }
.keys { max-height: 262px; overflow-y: auto; font-size: 12.5px; border-left: 1px solid var(--grid); }
.keys span { display: flex; gap: 8px; padding: 1px 8px; cursor: default; } .keys b { margin-left: auto; }
.keys i { color: var(--soft); }
@media (min-width: 900px) { .charts .card:has(.beside) { grid-column: span 2; } }
.all { max-height: 620px; overflow: auto; } .all th { position: sticky; top: 0; background: var(--card);
  cursor: pointer; user-select: none; } .all th[data-up="1"]::after { content: " ▲"; }
.all th[data-up="-1"]::after { content: " ▼"; } td:has(+ td) { white-space: nowrap; }
.shares { display: grid; grid-template-columns: auto 1fr auto; gap: 4px 12px; font-size: 13px; align-items: center; }
.shares i { height: 12px; border-radius: 3px; background: var(--c0); min-width: 2px; }
"""
_SCRIPT = """
const page = document.body;
let on = null;
const point = number => {
  if (number === on) return;
  for (const mark of page.querySelectorAll(".on")) mark.classList.remove("on");
  on = number;
  page.classList.toggle("pointing", on !== null);
  if (on === null) return;
  for (const mark of page.querySelectorAll(`[data-trial="${on}"]`)) {
    mark.classList.add("on");
    if (mark.tagName === "path") mark.parentNode.append(mark);
  }
};
page.addEventListener("pointerover", event => {
  const mark = event.target.closest("[data-trial]");
  point(mark ? mark.dataset.trial : null);
});
for (const path of page.querySelectorAll("path[data-trial]")) {
  const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
  const row = page.querySelector(`tr[data-trial="${path.dataset.trial}"]`);
  title.textContent = row ? row.dataset.told : "";
  path.append(title);
}
for (const head of page.querySelectorAll(".all th")) head.addEventListener("click", () => {
  const rows = [...head.closest("table").tBodies[0].rows], up = head.dataset.up === "1" ? -1 : 1;
  for (const other of head.parentNode.cells) delete other.dataset.up;
  head.dataset.up = up;
  const key = row => row.cells[head.cellIndex].dataset.value ?? row.cells[head.cellIndex].textContent;
  rows.sort((a, b) => {
    const x = key(a), y = key(b);
    if (!x || !y) return x ? -1 : y ? 1 : 0;
    return up * (isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y);
  });
  head.closest("table").tBodies[0].append(...rows);
});
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
    commands: Mapping[int, str],
    folder: Path,
) -> str:
    """Make the page.

    Args:
        study: of optuna.
        names: the objectives, such as `eval_loss`.
        rows: a row for each trial, by the names of `trials.csv`.
        best: the best trials.
        importances: how much each parameter counts, for each objective.
        commands: what trains a trial once more, by its number.
        folder: where the page will be.
    """
    directions = [one.name.lower() for one in study.directions]
    numbers = {trial.number for trial in best}
    named = [_renamed(row, names) for row in rows]
    shown = ("trial", "failure", "log")
    failed = [{name: row[name] for name in shown if name in row} for row in named if row["failure"]]
    whole = [{name: value for name, value in row.items() if name != "failure"} for row in named]
    varied = {name: None for trial in study.get_trials(deepcopy=False) for name in trial.params}
    order = sorted(varied, key=lambda name: -importances[0].get(name, 0))[:MOST_AXES]
    parts = [
        _header(study, rows, directions, names),
        _tiles(rows, best, directions, names),
        _section("Best trial" if len(numbers) == 1 else "Best trials", _best(named, numbers, commands, folder)),
        StudyPictures(study, names, numbers, order).figures(),
        _importances(names, importances),
        _section("Failed trials", _table(failed, set(), folder)) if failed else "",
        _section("All trials", _table(whole, numbers, folder, is_whole=True)) if rows else "",
        "<footer>Written by lightrainer. All values are in trials.csv. Point at a trial to find it everywhere, and at "
        "the head of a column to sort by it.</footer>",
    ]
    return document(f"{escape(study.study_name)} · search report", "".join(parts), _STYLE, _SCRIPT)


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


def _best(rows: Sequence[Mapping[str, Any]], numbers: set[int], commands: Mapping[int, str], folder: Path) -> str:
    """Return what the best trials have, where it is, and what trains them once more."""
    found = [row for row in rows if row["trial"] in numbers]
    if not found:
        return "<p>No trial was completed.</p>"
    again = "".join(
        f"<div>Train trial {number} once more:<pre>{escape(commands[number])}</pre></div>"
        for number in sorted(numbers & commands.keys())
    )
    if len(found) > 1:
        return _table(found, set(), folder) + again
    shown = {name: value for name, value in found[0].items() if value is not None}
    pairs = "".join(
        f"<tr><th>{escape(k)}</th><td>{_cell(k, v, folder, is_whole=True)}</td></tr>" for k, v in shown.items()
    )
    return f'<div class="two"><table class="pairs">{pairs}</table>{again}</div>'


def _importances(names: Sequence[str], importances: Sequence[Mapping[str, float]]) -> str:
    figures = ""
    for name, shares in zip(names, importances, strict=True):
        bars = "".join(
            f'<span>{escape(parameter)}</span><i style="width:{100 * share:.1f}%"></i><b>{share:.2f}</b>'
            for parameter, share in shares.items()
        )
        title = "Importances" if len(names) == 1 else f"Importances for {escape(name)}"
        figures += f'<figure class="card"><h2>{title}</h2><div class="shares">{bars}</div></figure>' if bars else ""
    return f'<div class="charts">{figures}</div>' if figures else ""


def _renamed(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A row with each value under the name of its objective; what the objectives are, stands above."""
    titles = {f"value_{index}": name for index, name in enumerate(names)} | {"value": names[0]}
    kept = {name: value for name, value in row.items() if not _OBJECTIVE.fullmatch(name)}
    return {titles.get(name, name): value for name, value in kept.items()}


def _section(title: str, inside: str) -> str:
    return f'<section class="card"><h2>{escape(title)}</h2>{inside}</section>'


def _table(rows: Iterable[Mapping[str, Any]], best: set[int], folder: Path, *, is_whole: bool = False) -> str:
    rows = list(rows)
    columns = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = ""
    for row in rows:
        look = " class=best" if row["trial"] in best else ""
        body += f'<tr data-trial="{row["trial"]}" data-told="{escape(_told(row))}"{look}>'
        body += "".join(_td(name, row.get(name), folder) for name in columns) + "</tr>"
    kind = "scroll all" if is_whole else "scroll"
    return f'<div class="{kind}"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _told(row: Mapping[str, Any]) -> str:
    return "\n".join(f"{k}: {_shown(v)}" for k, v in row.items() if v is not None and k not in _PLACES)


def _td(name: str, value: Any, folder: Path) -> str:
    exact = f' data-value="{value}"' if isinstance(value, float) else ""
    return f"<td{exact}>{_cell(name, value, folder)}</td>"


def _cell(name: str, value: Any, folder: Path, *, is_whole: bool = False) -> str:
    """A value; of a folder or log a link, in the table without the way to it, which is the same for all."""
    text = _shown(value)
    if name not in _PLACES or not text:
        return escape(text)
    way = quote(os.path.relpath(text, folder))
    return f'<a href="{way}">{escape(text if is_whole else os.path.basename(text.rstrip("/")))}</a>'


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
