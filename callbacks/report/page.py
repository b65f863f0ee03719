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
from .chart import chart
from .curves import Points, by_name, panels
from .scales import short
from .style import SCRIPT, STYLE

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
# Nothing may be fetched: whoever opens the page tells nobody.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def render_page(args: Any, state: TrainerState, *, status: str, now: datetime | None = None) -> str:
    """A report on a run.

    Args:
        args: the arguments, of which the most asked for are listed.
        state: where the run is; its `log_history` is what is drawn.
        status: `running`, `finished` or `stopped`.
        now: when this is written; by default now.
    """
    written = (now or datetime.now().astimezone()).strftime("%Y-%m-%d %H:%M:%S %Z").strip()
    history = state.log_history
    last = max([state.global_step, *(step for step, _ in numbers_in(history))])
    charts = "".join(chart(panel, last) for panel in panels(history))
    name = escape(run_name(args))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name} · training report</title><style>{STYLE}</style></head><body><main>"
        f"{_header(name, state, status, written)}{_tiles(state)}"
        f'<div class="charts">{charts or _NOTHING}</div>{_settings(args)}{_values(history)}'
        "<footer>Written by lightrainer. Point at a chart to read its values.</footer>"
        f"</main><script>{SCRIPT}</script></body></html>\n"
    )


_NOTHING = '<figure class="card"><div class="empty">Nothing has been logged yet.</div></figure>'


def run_name(args: Any) -> str:
    """What to call a run: its `run_name`, or else the name of its folder."""
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
