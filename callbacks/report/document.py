"""The frame and the parts of every page: one file each, which fetches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

_HERE = Path(__file__).parent
# The page may load nothing from the network, so that opening it discloses nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def document(title: str, body: Iterable[str], style: str = "", script: str | None = None) -> str:
    """Return a whole page, with the rules of `page.css`.

    Args:
        title: plain text.
        body: parts, as HTML.
        style: rules besides those of all pages.
        script: makes it react; by default `page.js`, which shows the values under the pointer.
    """
    rules = (_HERE / "page.css").read_text(encoding="utf-8") + style
    script = (_HERE / "page.js").read_text(encoding="utf-8") if script is None else script
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{rules}</style></head><body><main>{''.join(body)}</main>"
        f"<script>{script}</script></body></html>\n"
    )


def header(name: str, badge: str, *lines: str, kind: str = "", below: str = "") -> str:
    """Return the title with a badge.

    Args:
        name: the title.
        badge: its text.
        lines: stand below.
        kind: gives the badge its colour: `running`, `finished`, `stopped`; by default that of its text.
        below: HTML, stands below the lines.
    """
    pill = f'<span class="pill {kind or badge}">{escape(badge)}</span>'
    texts = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f"<header><h1>{escape(name)}</h1>{pill}{texts}{below}</header>"


def tiles(facts: Iterable[tuple[str, str, str]]) -> str:
    """Return a box for each fact: its name, its value, and a note in small letters."""
    boxes = "".join(
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b>'
        f"{f'<small>{escape(note)}</small>' if note else ''}</div>"
        for name, value, note in facts
    )
    return f'<div class="tiles">{boxes}</div>' if boxes else ""


def charts(figures: Iterable[str]) -> str:
    """Return figures side by side."""
    joined = "".join(figures)
    return f'<div class="charts">{joined}</div>' if joined else ""


def figure(title: str, inside: str, unit: str = "", legend: str = "") -> str:
    """Return a card with a title.

    Args:
        title: plain text.
        inside: HTML.
        unit: stands beside the title.
        legend: HTML, stands on the right of the title.
    """
    of = f' <span class="unit">{escape(unit)}</span>' if unit else ""
    return f'<figure class="card"><figcaption><h2>{escape(title)}{of}</h2>{legend}</figcaption>{inside}</figure>'


def folded(title: str, inside: str, *, is_open: bool = False) -> str:
    """Return a card whose HTML inside opens with a click on its title."""
    return (
        f'<details class="card"{" open" if is_open else ""}><summary>{escape(title)}</summary>'
        f'<div class="scroll">{inside}</div></details>'
    )


def table(head: Iterable[str], rows: Iterable[Sequence[str]], *, attributes: Sequence[str] = (), kind: str = "") -> str:
    """Return a table.

    Args:
        head: titles of the columns, plain text.
        rows: cells, as HTML.
        attributes: of each row, if any.
        kind: a class: `texts` has its first column flush left, `texts2` the first two; all others are flush right.
    """
    titles = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = [f"{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows]
    body = "".join(f"<tr {a}>{line}" for a, line in zip(attributes or [""] * len(lines), lines, strict=True))
    return f'<table class="{kind}"><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>'


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names, plain text, and values, as HTML."""
    lines = "".join(f"<tr><th>{escape(name)}</th><td>{value}</td></tr>" for name, value in rows)
    return f'<table class="pairs">{lines}</table>'
