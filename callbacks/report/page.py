"""The report of a run as a page: its picture, and a table of its logged values."""

from __future__ import annotations

import base64
from datetime import datetime
from html import escape
from typing import Any

from .._text import shortened
from ..state import TrainerState

_MAX_ROWS = 100
"""Largest number of logs in the table."""
_STYLE = (
    "body { font-family: sans-serif } img { max-width: 100% } td, th { padding: 0 1em 0 0; "
    "text-align: right }"
)


def render_page(name: str, state: TrainerState, picture: bytes) -> str:
    """Return the report of a run as a single page without external resources.

    Args:
        name: the name of the run.
        state: has the progress and the logged values.
        picture: the curves as a PNG; empty without curves.
    """
    progress = f"step {state.global_step:,} of {state.max_steps:,}, epoch {state.epoch or 0:.4g}"
    written_at = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    title = escape(name)

    # The picture is part of the page, which can be sent as a single file.
    image = ""
    if picture:
        encoded_picture = base64.b64encode(picture).decode()
        source = f"data:image/png;base64,{encoded_picture}"
        image = f'<img alt="Curves of the logged values" src="{source}">'

    sections = [
        "<!doctype html>",
        f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>',
        f"<h1>{title}</h1><p>{progress}; {written_at}</p>",
        image,
        _table(state.log_history),
    ]
    return "\n".join(sections)


def _table(log_history: list[dict[str, Any]]) -> str:
    """Return the newest entries of the history as a table, the last one first."""
    # Collect the columns of the shown entries in the order in which they first appear. The keys of
    # a dict are an ordered set.
    newest_entries = log_history[-_MAX_ROWS:]
    columns = {"step": None}
    for entry in newest_entries:
        columns.update(dict.fromkeys(entry))

    lines = [
        f"<p>The last {len(newest_entries)} of {len(log_history)} logs:</p><table>",
        _row("th", list(columns)),
    ]
    for entry in reversed(newest_entries):
        lines.append(_row("td", [entry.get(name, "") for name in columns]))
    lines.append("</table>")
    return "\n".join(lines)


def _row(tag: str, values: list[Any]) -> str:
    """Return a row of the table; its cells have the tag `th` or `td`."""
    cells: list[str] = []
    for value in values:
        text = f"{value:.6g}" if isinstance(value, float) else shortened(value)
        cells.append(f"<{tag}>{escape(text)}</{tag}>")
    return f"<tr>{''.join(cells)}</tr>"
