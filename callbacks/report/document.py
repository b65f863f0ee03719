"""The frame and the parts of every page: one file each, which fetches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --text: #1b2330; --soft: #667085; --edge: #e4e7ec; --grid: #eceff3; --bad: #d92d20;
  --c0: #2563eb; --c1: #ea6a12; --c2: #0d9466; --c3: #8b46e0; --c4: #d6336c; --c5: #0c8599;
  --c6: #a16207; --c7: #5f6b7a; }
@media (prefers-color-scheme: dark) { :root {
  --page: #0f141b; --card: #171e28; --text: #e6eaf0; --soft: #98a2b3; --edge: #273140; --grid: #232c39; --bad: #ff7a6e;
  --c0: #6ea8ff; --c1: #ff9d57; --c2: #3ecf9a; --c3: #b892ff; --c4: #ff7fab; --c5: #4fd1e0; --c6: #e2b34a;
  --c7: #a9b4c2; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  font-variant-numeric: tabular-nums; }
main { max-width: 1280px; margin: 0 auto; padding: 28px 20px 48px; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 14px; margin-bottom: 18px; }
h1 { font-size: 25px; line-height: 1.2; margin: 0; overflow-wrap: anywhere; letter-spacing: -0.01em; }
header p { flex-basis: 100%; margin: 0; color: var(--soft); }
.pill { font-size: 13px; font-weight: 600; padding: 1px 10px; border-radius: 99px; border: 1px solid currentColor; }
.pill.running, .pill.evaluated { color: var(--c0); }
.pill.finished { color: var(--c2); } .pill.stopped { color: var(--c1); }
.bar { flex-basis: 100%; height: 5px; border-radius: 5px; background: var(--edge); overflow: hidden; margin-top: 8px; }
.bar i { display: block; height: 100%; background: var(--c0); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-bottom: 12px; }
.tile, .card { background: var(--card); border: 1px solid var(--edge); border-radius: 12px; }
.tile { padding: 10px 14px 11px; }
.tile span { display: block; font-size: 12.5px; color: var(--soft); }
.tile small { color: var(--soft); margin-left: 6px; }
.tile b { font-size: 21px; font-weight: 650; letter-spacing: -0.01em; overflow-wrap: anywhere; line-height: 1.3; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 12px; }
.card { margin: 0; padding: 14px 16px 12px; min-width: 0; }
.charts .card:first-child { grid-column: 1 / -1; }
.charts .card:first-child .plot { height: 280px; }
figcaption { display: flex; flex-wrap: wrap; align-items: baseline; justify-content: space-between; gap: 2px 14px;
  margin-bottom: 8px; }
h2 { font-size: 15px; font-weight: 650; margin: 0; overflow-wrap: anywhere; }
.unit { color: var(--soft); font-weight: 400; font-size: 13px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 13px; color: var(--soft); }
.key { overflow-wrap: anywhere; } .key b { color: var(--text); font-weight: 600; }
.key::before { content: ""; display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin-right: 6px;
  vertical-align: middle; background: var(--color); }
.c0 { --color: var(--c0); } .c1 { --color: var(--c1); } .c2 { --color: var(--c2); } .c3 { --color: var(--c3); }
.c4 { --color: var(--c4); } .c5 { --color: var(--c5); } .c6 { --color: var(--c6); } .c7 { --color: var(--c7); }
.chart { display: grid; grid-template-columns: 46px 1fr; }
.plot { position: relative; height: 190px; border-bottom: 1px solid var(--edge); touch-action: pan-y; }
.plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.y { position: relative; } .x { grid-column: 2; position: relative; height: 20px; }
.y span, .x span { position: absolute; font-size: 12px; color: var(--soft); white-space: nowrap; line-height: 1; }
.y span { right: 8px; transform: translateY(-50%); } .x span { top: 7px; transform: translateX(-50%); }
path, line { fill: none; vector-effect: non-scaling-stroke; stroke-linejoin: round; stroke-linecap: round; }
.grid { stroke: var(--grid); } .gap { stroke: var(--bad); stroke-dasharray: 3 4; opacity: 0.7; }
.line { stroke: var(--color); stroke-width: 2; } .faint { stroke: var(--color); stroke-width: 1; opacity: 0.28; }
.dots { stroke: var(--color); stroke-width: 6.5; }
.cursor { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--soft); opacity: 0.6; display: none; }
.tip { position: absolute; top: 6px; display: none; pointer-events: none; z-index: 1; padding: 5px 9px;
  font-size: 12.5px; line-height: 1.45; border: 1px solid var(--edge); border-radius: 8px; background: var(--card);
  white-space: nowrap; box-shadow: 0 3px 12px rgb(0 0 0 / 0.14); }
.note { margin: 8px 0 0; font-size: 13px; color: var(--bad); }
.empty { height: 60px; display: grid; place-items: center; color: var(--soft); }
details.card { margin-top: 12px; } summary { cursor: pointer; font-weight: 650; }
.scroll { overflow-x: auto; margin-top: 8px; }
table { border-collapse: collapse; font-size: 13px; } th, td { padding: 3px 14px 3px 0; text-align: right; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; } td { border-top: 1px solid var(--grid); }
.pairs th, .pairs td, .texts :first-child, .texts2 :nth-child(-n + 2) { text-align: left; }
footer { margin-top: 18px; font-size: 13px; color: var(--soft); }
@media (max-width: 520px) { main { padding: 18px 12px 32px; } .tiles { grid-template-columns: 1fr 1fr; gap: 8px; }
  .tile b { font-size: 18px; } .charts { gap: 8px; } .card { padding: 12px 12px 10px; } h1 { font-size: 21px; }
  .charts .card:first-child .plot { height: 220px; } }
@media print { .card, .tile { break-inside: avoid; } }
"""

SCRIPT = """
for (const plot of document.querySelectorAll(".plot")) {
  const curves = JSON.parse(plot.querySelector("script").textContent);
  const cursor = plot.querySelector(".cursor"), tip = plot.querySelector(".tip");
  const nearest = (points, x) => {
    let low = 0, high = points.length - 1;
    while (low < high) { const mid = (low + high) >> 1; if (points[mid][2] < x) low = mid + 1; else high = mid; }
    return low > 0 && x - points[low - 1][2] < points[low][2] - x ? points[low - 1] : points[low];
  };
  const show = event => {
    const box = plot.getBoundingClientRect(), x = (event.clientX - box.left) / box.width;
    const found = curves.filter(c => c.points.length).map(c => [c.label, nearest(c.points, x)]);
    if (!found.length) return;
    const at = found.reduce((a, b) => Math.abs(b[1][2] - x) < Math.abs(a[1][2] - x) ? b : a)[1];
    tip.replaceChildren();
    const line = text => { tip.append(document.createElement("div")); tip.lastChild.textContent = text; };
    line("step " + at[0]);
    for (const [label, point] of found) if (point[0] === at[0]) line(label + "  " + point[1]);
    cursor.style.display = tip.style.display = "block";
    cursor.style.left = 100 * at[2] + "%";
    const left = at[2] * box.width;
    tip.style.left = (left < box.width / 2 ? left + 10 : left - 10 - tip.offsetWidth) + "px";
  };
  plot.addEventListener("pointermove", show);
  plot.addEventListener("pointerdown", show);
  plot.addEventListener("pointerleave", () => { cursor.style.display = tip.style.display = "none"; });
}
"""
# The page may load nothing from the network, so that opening it discloses nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def document(title: str, body: Iterable[str], style: str = "", script: str = SCRIPT) -> str:
    """Return a whole page.

    Args:
        title: plain text.
        body: parts, as HTML.
        style: rules besides those of all pages.
        script: makes it react.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head><body><main>{''.join(body)}</main>"
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
