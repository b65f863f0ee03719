"""The page about a run: title, facts, charts, settings and logged values."""

from __future__ import annotations

import math
from datetime import datetime
from html import escape
from statistics import median
from typing import Any

from .._log_values import number_of, numbers_in, shortened, split_history
from .._work import clock
from ..state import TrainerState
from .chart import chart, short
from .curves import Points, by_name, panels
from .document import charts, document, folded, header, pairs, table, tiles

_MOST_ROWS = 100
_SETTINGS = (
    *("output_dir", "num_train_epochs", "max_steps", "per_device_train_batch_size", "gradient_accumulation_steps"),
    *("world_size", "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "optim", "max_grad_norm"),
    *("bf16", "fp16", "gradient_checkpointing", "torch_compile", "seed"),
)
_NOTHING = '<figure class="card"><div class="empty">Nothing has been logged yet.</div></figure>'
_FOOTER = "<footer>Written by lightrainer. Point at a chart to read its values.</footer>"


def render_page(args: Any, state: TrainerState, *, status: str) -> str:
    """Return a report on a run.

    Args:
        args: the arguments, of which the most important ones are listed.
        state: where the run is; its `log_history` is what is drawn.
        status: `running`, `finished`, `stopped`, or `evaluated` where nothing was trained.
    """
    history = state.log_history
    last = max([state.global_step, *(step for step, _ in numbers_in(history))])
    name = run_name(args)
    drawn = [chart(panel, last) for panel in panels(history)]
    head = header(name, status, _progress(state), below=_bar(state))
    body = [head, tiles(_facts(state)), charts(drawn or [_NOTHING]), _settings(args), _values(history), _FOOTER]
    return document(f"{name} · training report", body)


def run_name(args: Any) -> str:
    """Return the name of a run: its `run_name`, or else the name of its folder."""
    folder = str(getattr(args, "output_dir", "") or "")
    name = str(getattr(args, "run_name", None) or folder)
    return (name.rstrip("/").rpartition("/")[2] if name == folder else name) or "training"


def _progress(state: TrainerState) -> str:
    steps = f"step {state.global_step:,}" + (f" of {state.max_steps:,}" if state.max_steps > 0 else "")
    epochs = f"epoch {state.epoch or 0:.4g}"
    if 0 < state.num_train_epochs < 10**9:
        epochs += f" of {state.num_train_epochs}"
    written = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    return f"{steps} · {epochs} · {written}"


def _bar(state: TrainerState) -> str:
    done = min(state.global_step / state.max_steps, 1) if state.max_steps > 0 else 0
    return f'<div class="bar"><i style="width:{100 * done:.1f}%"></i></div>'


def _facts(state: TrainerState) -> list[tuple[str, str, str]]:
    """Return the name and value of each fact that is known, and its step, if it has one."""
    history = state.log_history
    ended = [values["train_runtime"] for _, values in numbers_in(history) if "train_runtime" in values]
    loss, evaluated, shares = (by_name(history, name) for name in ("loss", "eval_loss", "mfu"))
    lowest = min(((value, step) for step, value in evaluated if math.isfinite(value)), default=None)
    best = number_of(state.best_metric)
    facts = [
        ("Loss", short(loss[-1][1]) if loss else "", ""),
        ("Lowest evaluation loss", *((short(lowest[0]), _at(lowest[1])) if lowest else ("", ""))),
        ("Best metric", "" if best is None else short(best), _at(number_of(state.best_global_step))),
        ("Samples per second", _usual(by_name(history, "samples_per_second")), ""),
        ("Tokens per second", _usual(by_name(history, "tokens_per_second")), ""),
        ("Share of the peak (MFU)", f"{100 * median(v for _, v in shares):.3g} %" if shares else "", ""),
        ("Accelerator memory, peak", _most(by_name(history, "device_memory_peak_gib")), ""),
        ("Main memory, most", _most(by_name(history, "host_memory_gib")), ""),
        ("Training time", clock(ended[-1]) if ended else "", ""),
    ]
    return [fact for fact in facts if fact[1]]


def _at(step: float | None) -> str:
    return f"step {short(step, 6)}" if step else ""


def _usual(points: Points) -> str:
    return short(median(value for _, value in points)) if points else ""


def _most(points: Points) -> str:
    return f"{short(max(value for _, value in points))} GiB" if points else ""


def _settings(args: Any) -> str:
    known = [(name, getattr(args, name)) for name in _SETTINGS if hasattr(args, name)]
    return folded("Settings", pairs((name, escape(shortened(getattr(it, "value", it)))) for name, it in known))


def _values(history: list[dict[str, Any]]) -> str:
    """Return the newest entries of the history as a table."""
    later = {id(entry) for entry in split_history(history)[1]}
    shown = [
        {**entry, "step": f"{entry.get('step')}, after training"} if id(entry) in later else entry
        for entry in reversed(history[-_MOST_ROWS:])
    ]
    names = ["step", *dict.fromkeys(name for entry in reversed(shown) for name in entry if name != "step")]
    of = f"the last {len(shown)} of {len(history)}" if len(shown) < len(history) else str(len(history))
    rows = ([_cell(entry.get(name)) for name in names] for entry in shown)
    return folded(f"Logged values ({of})", table(map(shortened, names), rows)) if history else ""


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return short(value) if isinstance(value, float) else escape(shortened(value))
