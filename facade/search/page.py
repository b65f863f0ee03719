"""The report of a search as one page of HTML, which looks like the report on a run and fetches nothing."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...callbacks.report.document import charts, document, figure, header, pairs, table, tiles
from .pictures import MOST_AXES, StudyPictures

_STYLE = """
td { overflow-wrap: anywhere; } main > .card { margin-bottom: 12px; }
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
_SCRIPT = r"""
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
  const heads = row ? row.closest("table").tHead.rows[0].cells : [];
  const values = row ? [...row.cells].map(cell => [heads[cell.cellIndex].textContent, cell.textContent]) : [];
  title.textContent = values.filter(pair => pair[1]).map(pair => pair.join(": ")).join("\n");
  path.append(title);
}
for (const head of page.querySelectorAll(".all th")) head.addEventListener("click", () => {
  const rows = [...head.closest("table").tBodies[0].rows], up = head.dataset.up === "1" ? -1 : 1;
  for (const other of head.parentNode.cells) delete other.dataset.up;
  head.dataset.up = up;
  const key = row => row.cells[head.cellIndex].textContent;
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
    numbers = {trial.number for trial in best}
    goals = [(one.name.lower(), name) for one, name in zip(study.directions, names, strict=True)]
    named = [_renamed(row, names) for row in rows]
    shown = ("trial", "failure", "log")
    failed = [{name: row[name] for name in shown if name in row} for row in named if row["failure"]]
    whole = [{name: value for name, value in row.items() if name != "failure"} for row in named]
    varied = {name: None for trial in study.get_trials(deepcopy=False) for name in trial.params}
    order = sorted(varied, key=lambda name: -importances[0].get(name, 0))[:MOST_AXES]
    parts = [
        _header(study.study_name, rows, goals),
        tiles(_facts(rows, best, goals)),
        figure("Best trial" if len(numbers) == 1 else "Best trials", _best(named, numbers, commands, folder)),
        StudyPictures(study, names, numbers, order).figures(),
        charts(_importances(names, importances)),
        figure("Failed trials", _table(failed, set(), folder)) if failed else "",
        figure("All trials", _table(whole, numbers, folder, kind="all")) if rows else "",
        "<footer>Written by lightrainer. All values are in trials.csv. Point at a trial to find it everywhere, and at "
        "the head of a column to sort by it.</footer>",
    ]
    return document(f"{study.study_name} · search report", parts, _STYLE, _SCRIPT)


def _header(name: str, rows: Sequence[Mapping[str, Any]], goals: Sequence[tuple[str, str]]) -> str:
    states = Counter(str(row["state"]).lower() for row in rows)
    counts = ", ".join(f"{count} {state}" for state, count in states.items()) or "none"
    status = "running" if "running" in states else "finished"
    return header(name, status, f"{', '.join(map(' '.join, goals))} · {len(rows)} trials: {counts}")


def _facts(rows: Sequence[Any], best: Sequence[Any], goals: Sequence[tuple[str, str]]) -> list[tuple[str, str, str]]:
    facts = []
    for index, (word, name) in enumerate(goals):
        choose = min if word == "minimize" else max
        found = choose(best, key=lambda trial: trial.values[index], default=None)
        value = ("none yet", "") if found is None else (_shown(found.values[index]), f"trial {found.number}")
        facts.append((f"{name} ({word})", *value))
    seconds = sum(row["seconds"] or 0 for row in rows)
    return [*facts, ("Trials", str(len(rows)), ""), ("Time in trials", f"{seconds:,.0f} s", "")]


def _best(rows: Sequence[Mapping[str, Any]], numbers: set[int], commands: Mapping[int, str], folder: Path) -> str:
    """Return the values and folders of the best trials, and the commands that train them once more."""
    found = [row for row in rows if row["trial"] in numbers]
    if not found:
        return "<p>No trial was completed.</p>"
    again = "".join(
        f"<div>Train trial {number} once more:<pre>{escape(commands[number])}</pre></div>"
        for number in sorted(numbers & commands.keys())
    )
    if len(found) > 1:
        return _table(found, set(), folder) + again
    shown = pairs((k, _cell(k, v, folder, is_whole=True)) for k, v in found[0].items() if v is not None)
    return f'<div class="two">{shown}{again}</div>'


def _importances(names: Sequence[str], importances: Sequence[Mapping[str, float]]) -> Iterator[str]:
    for name, shares in zip(names, importances, strict=True):
        bars = "".join(
            f'<span>{escape(parameter)}</span><i style="width:{100 * share:.1f}%"></i><b>{share:.2f}</b>'
            for parameter, share in shares.items()
        )
        title = "Importances" if len(names) == 1 else f"Importances for {name}"
        if bars:
            yield figure(title, f'<div class="shares">{bars}</div>')


def _renamed(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return a row with each value under the name of its objective; the page's head names the objectives."""
    titles = {f"value_{index}": name for index, name in enumerate(names)} | {"value": names[0]}
    kept = {name: value for name, value in row.items() if not _OBJECTIVE.fullmatch(name)}
    return {titles.get(name, name): value for name, value in kept.items()}


def _table(rows: Sequence[Mapping[str, Any]], best: set[int], folder: Path, *, kind: str = "") -> str:
    columns = list(dict.fromkeys(name for row in rows for name, value in row.items() if value is not None))
    cells = ([_cell(name, row.get(name), folder) for name in columns] for row in rows)
    looks = [f' data-trial="{row["trial"]}"{" class=best" if row["trial"] in best else ""}' for row in rows]
    return f'<div class="scroll {kind}">{table(columns, cells, attributes=looks)}</div>'


def _cell(name: str, value: Any, folder: Path, *, is_whole: bool = False) -> str:
    """Return a value; of a folder or log a link, in tables without its parents, which are the same for all."""
    text = _shown(value)
    if name not in ("folder", "log") or not text:
        return escape(text)
    target = quote(os.path.relpath(text, folder))
    return f'<a href="{target}">{escape(text if is_whole else os.path.basename(text.rstrip("/")))}</a>'


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
