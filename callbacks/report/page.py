"""The page: title, figures, charts and tables, in one file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from html import escape
from statistics import median
from typing import Any

from .._log_values import number_of, numbers_in, split_history, text_of
from .._work import clock
from ..state import TrainerState
from .chart import chart, short
from .curves import Points, by_name, panels

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
.pairs th, .pairs td { text-align: left; }
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


_MOST_ROWS = 100
_SETTINGS = (
    "output_dir",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "world_size",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "optim",
    "max_grad_norm",
    "bf16",
    "fp16",
    "gradient_checkpointing",
    "torch_compile",
    "seed",
)
# The page may load nothing from the network, so that opening it discloses nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def render_page(args: Any, state: TrainerState, *, status: str, now: datetime | None = None) -> str:
    """A report on a run.

    Args:
        args: the arguments, of which the most asked for are listed.
        state: where the run is; its `log_history` is what is drawn.
        status: `running`, `finished`, `stopped`, or `evaluated` where nothing was trained.
        now: when this is written; by default now.
    """
    written = (now or datetime.now().astimezone()).strftime("%Y-%m-%d %H:%M:%S %Z").strip()
    history = state.log_history
    last = max([state.global_step, *(step for step, _ in numbers_in(history))])
    charts = "".join(chart(panel, last) for panel in panels(history))
    name = escape(run_name(args))
    body = (
        f"{_header(name, state, status, written)}{_tiles(state)}"
        f'<div class="charts">{charts or _NOTHING}</div>{_settings(args)}{_values(history)}'
        "<footer>Written by lightrainer. Point at a chart to read its values.</footer>"
    )
    return document(f"{name} · training report", body)


def document(title: str, body: str, style: str = "", script: str = SCRIPT) -> str:
    """Return a whole page that fetches nothing.

    Args:
        title: escaped, as the body is.
        body: what is in it.
        style: rules besides those of all reports.
        script: makes it react.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}{style}</style></head><body><main>{body}</main>"
        f"<script>{script}</script></body></html>\n"
    )


_NOTHING = '<figure class="card"><div class="empty">Nothing has been logged yet.</div></figure>'


def run_name(args: Any) -> str:
    """Return the name of a run: its `run_name`, or else the name of its folder."""
    folder = str(getattr(args, "output_dir", "") or "")
    name = str(getattr(args, "run_name", None) or folder)
    return (name.rstrip("/").rpartition("/")[2] if name == folder else name) or "training"


def _header(name: str, state: TrainerState, status: str, written: str) -> str:
    steps = f"step {state.global_step:,}" + (f" of {state.max_steps:,}" if state.max_steps > 0 else "")
    epochs = f"epoch {state.epoch or 0:.4g}"
    if 0 < state.num_train_epochs < 10**9:
        epochs += f" of {state.num_train_epochs}"
    done = min(state.global_step / state.max_steps, 1) if state.max_steps > 0 else 0
    return (
        f'<header><h1>{name}</h1><span class="pill {status}">{status}</span>'
        f"<p>{steps} · {epochs} · {escape(written)}</p>"
        f'<div class="bar"><i style="width:{100 * done:.1f}%"></i></div></header>'
    )


def _tiles(state: TrainerState) -> str:
    facts = {title: text.partition("@") for title, text in _facts(state) if text}
    tiles = "".join(
        f'<div class="tile"><span>{escape(title)}</span><b>{escape(value)}</b>'
        f"{f'<small>step {escape(step)}</small>' if step else ''}</div>"
        for title, (value, _, step) in facts.items()
    )
    return f'<div class="tiles">{tiles}</div>' if tiles else ""


def _facts(state: TrainerState) -> list[tuple[str, str]]:
    history = state.log_history
    ended = [values["train_runtime"] for _, values in numbers_in(history) if "train_runtime" in values]
    metric = number_of(state.best_metric)
    best = "" if metric is None else f"{short(metric)}{_at(number_of(state.best_global_step))}"
    shares = by_name(history, "mfu")
    memory = [by_name(history, name) for name in ("device_memory_peak_gib", "host_memory_gib")]
    return [
        ("Loss", _last(by_name(history, "loss"))),
        ("Lowest evaluation loss", _lowest(by_name(history, "eval_loss"))),
        ("Best metric", best),
        ("Samples per second", _usual(by_name(history, "samples_per_second"))),
        ("Tokens per second", _usual(by_name(history, "tokens_per_second"))),
        ("Share of the peak (MFU)", f"{100 * median(v for _, v in shares):.3g} %" if shares else ""),
        ("Accelerator memory, peak", _most(memory[0], "GiB")),
        ("Main memory, most", _most(memory[1], "GiB")),
        ("Training time", clock(ended[-1]) if ended else ""),
    ]


def _last(points: Points) -> str:
    return short(points[-1][1]) if points else ""


def _lowest(points: Points) -> str:
    finite = [(value, step) for step, value in points if math.isfinite(value)]
    return f"{short(min(finite)[0])}{_at(min(finite)[1])}" if finite else _last(points)


def _at(step: float | None) -> str:
    return "" if not step else f"@{short(step, 6)}"


def _usual(points: Points) -> str:
    return short(median(value for _, value in points)) if points else ""


def _most(points: Points, unit: str) -> str:
    return f"{short(max(value for _, value in points))} {unit}" if points else ""


def _settings(args: Any) -> str:
    known = {name: getattr(args, name) for name in _SETTINGS if hasattr(args, name)}
    rows = "".join(
        f"<tr><th>{name}</th><td>{escape(text_of(getattr(value, 'value', value)))}</td></tr>"
        for name, value in known.items()
    )
    return _folded("Settings", f'<table class="pairs">{rows}</table>') if rows else ""


def _values(history: list[dict[str, Any]]) -> str:
    if not history:
        return ""
    shown = [entry for entry in history[-_MOST_ROWS:] if isinstance(entry, Mapping)]
    later = {id(entry) for entry in split_history(history)[1]}
    shown = [
        {**entry, "step": f"{entry.get('step')}, after training"} if id(entry) in later else entry for entry in shown
    ]
    names = ["step", *dict.fromkeys(name for entry in shown for name in entry if name != "step")]
    head = "".join(f"<th>{escape(text_of(name))}</th>" for name in names)
    rows = "".join(
        f"<tr>{''.join(f'<td>{_cell(entry.get(name))}</td>' for name in names)}</tr>" for entry in reversed(shown)
    )
    of = f"the last {len(shown)} of {len(history)}" if len(shown) < len(history) else str(len(history))
    return _folded(f"Logged values ({of})", f"<table><tr>{head}</tr>{rows}</table>")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return short(value) if isinstance(value, float) else escape(text_of(value))


def _folded(title: str, inside: str) -> str:
    return f'<details class="card"><summary>{title}</summary><div class="scroll">{inside}</div></details>'
