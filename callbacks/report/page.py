"""The page about a run: its picture, and a table of its logged values."""

from __future__ import annotations

import base64
from datetime import datetime
from html import escape
from typing import Any

from .._log_values import shortened
from ..state import TrainerState

_MOST_ROWS = 100
_STYLE = (
    "body { font-family: sans-serif } img { max-width: 100% } td, th { padding: 0 1em 0 0; "
    "text-align: right }"
)


def render_page(name: str, state: TrainerState, status: str, picture: bytes) -> str:
    """Return a report on a run as one page, which loads nothing.

    Args:
        name: of the run.
        state: has the progress and the logged values.
        status: `running`, `finished`, `stopped`, or `evaluated` where nothing was trained.
        picture: of the curves, a PNG; empty where there are none.
    """
    steps = f"step {state.global_step:,} of {state.max_steps:,}, epoch {state.epoch or 0:.4g}"
    written = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    image = base64.b64encode(picture).decode()
    title = escape(f"{name}: {status}")
    sections = [
        "<!doctype html>",
        f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>',
        f"<h1>{title}</h1><p>{steps}; {written}</p>",
        (
            f'<img alt="Curves of the logged values" src="data:image/png;base64,{image}">'
            if picture
            else ""
        ),
        _table(state.log_history),
    ]
    return "\n".join(sections)


def _table(log_history: list[dict[str, Any]]) -> str:
    """Return the newest entries of the history as a table, the last one first."""
    shown = log_history[: -_MOST_ROWS - 1 : -1]
    names = dict.fromkeys(["step"])
    for entry in reversed(shown):
        names.update(dict.fromkeys(entry))
    lines = [
        f"<p>The last {len(shown)} of {len(log_history)} logs:</p><table>",
        _row("th", list(names)),
    ]
    lines += [_row("td", [entry.get(name, "") for name in names]) for entry in shown]
    return "\n".join([*lines, "</table>"])


def _row(tag: str, values: list[Any]) -> str:
    texts = [f"{value:.6g}" if isinstance(value, float) else shortened(value) for value in values]
    return f"<tr>{''.join(f'<{tag}>{escape(text)}</{tag}>' for text in texts)}</tr>"
