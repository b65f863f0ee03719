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

_HERE = Path(__file__).parent
_OBJECTIVE = re.compile(r"objective(_\d+)?")
"""The columns that say what a value is."""


def render(
    study: Any, names: Any, rows: Any, best: Any, importances: Any, commands: Mapping[int, str], folder: Path
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
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return document(f"{study.study_name} · search report", parts, style, script)


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
