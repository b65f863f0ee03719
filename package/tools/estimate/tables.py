"""Format estimates as text, and draw them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..command_line import table
from .estimation import Choice, Estimate
from .job import GIB
from .traffic import Collective

_LABELS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "master": "master weights",
    "activations": "activations",
    "logits": "logits, as the loss is computed",
    "buffers": "communication buffers",
}


def estimate_table(one: Estimate) -> str:
    """Format an estimate: memory by purpose, collectives of a step, and times where speeds are known."""
    job = one.job
    lines = [*_heading(one), "", *table(_memory_rows(one)), ""]
    if one.traffic:
        rows = [("sent by a device in a step", "tensors", "devices", "sent")]
        rows += [
            (
                f"{c.kind} of {c.what}" if c.kind != "copy" else f"copy of {c.what}",
                size(c.bytes),
                _group(c),
                size(c.sent),
            )
            for c in one.traffic
        ]
        rows.append(("total to other devices", "", "", size(one.sent)))
        lines += [*table(rows), ""]
    times = {"sending": one.sending_seconds, "computing": one.computing_seconds}
    lines += [f"{name}: {seconds(value)} a step" for name, value in times.items() if value is not None]
    room = f"{size(job.gpu_memory)} of device memory, with 10% kept free"
    lines.append(f"fits into {room}" if one.fits else f"DOES NOT FIT into {room}")
    return "\n".join(lines)


def comparison_table(choice: Choice) -> str:
    """Format all strategies, one line each, and the recommended one."""
    first = choice.estimates[0]
    timed = first.sending_seconds is not None
    rows = [("strategy", "device", "host", "sent", "copied", *(("sending",) if timed else ()), "fits")]
    rows += [
        (
            one.job.strategy,
            size(one.memory.total),
            size(one.memory.host) if one.memory.host else "-",
            size(one.sent) if one.sent else "-",
            size(one.copied) if one.copied else "-",
            *((seconds(one.sending_seconds or 0.0),) if timed else ()),
            "yes" if one.fits else "no",
        )
        for one in choice.estimates
    ]
    lines = [*_heading(first)[:-1], "", *table(rows), ""]
    if choice.best is None:
        lines.append(
            "None fits: take more devices, a smaller batch or shorter sequences, or an optimizer with less state."
        )
    else:
        lines.append(f"Take: {choice.best.job.strategy}. {choice.reason}")
    return "\n".join(lines)


def size(number: float) -> str:
    """Format bytes, as in `13.04 GiB`."""
    for unit, bytes_of_unit in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= bytes_of_unit:
            return f"{number / bytes_of_unit:,.2f} {unit}"
    return f"{number:,.0f} B"


def seconds(number: float) -> str:
    """Format a time, as in `31 ms`."""
    return f"{number:,.2f} s" if number >= 1 else f"{number * 1e3:,.2f} ms"


def _heading(one: Estimate) -> list[str]:
    job, model = one.job, one.job.model
    machines = f"{job.nodes} machines of {job.local}" if job.nodes > 1 else "one machine"
    lines = [
        f"{model.parameters:,} parameters: {model.layers} layers of width {model.hidden:,}, {model.heads} heads "
        f"({model.kv_heads} of keys and values), MLP {model.intermediate:,}, vocabulary {model.vocabulary:,}",
        *([f"  {model.assumed}"] if model.assumed else []),
        f"{job.gpus} devices, {machines}; {job.batch} x {job.sequence:,} tokens in a micro-batch, "
        f"{job.accumulation} of them in a step: {_tokens_of_a_step(one):,} tokens",
        f"{job.precision}, {job.optim}, attention: {job.attention}",
        f"strategy: {job.strategy}",
    ]
    return lines


def _tokens_of_a_step(one: Estimate) -> int:
    return one.job.replicas * one.job.batch * one.job.sequence * one.job.accumulation


def _memory_rows(one: Estimate) -> list[tuple[str, ...]]:
    values = dataclasses.asdict(one.memory)
    rows = [("memory of a device", "")]
    rows += [(label, size(values[name])) for name, label in _LABELS.items() if values[name]]
    rows.append(("total", size(one.memory.total)))
    if one.memory.host:
        rows.append(("in host memory, for each device", size(one.memory.host)))
    return rows


def _group(one: Collective) -> str:
    return "-" if one.group == 1 else f"{one.group}, {'several machines' if one.across else 'one machine'}"


INSTALL = "pip install 'lightrainer[plot]'"
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#eeca3b", "#9d755d")


def draw(estimates: Sequence[Estimate], path: str) -> None:
    """Draw the memory of a device under each strategy, with a line at the device's memory.

    Args:
        estimates: at least one; all for the same device.
        path: of the file, with the ending of its kind.

    Raises:
        ImportError: there is no matplotlib; says how to install it.
        OSError: the file cannot be written.
        ValueError: matplotlib does not know the ending of the path.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(f"plot={path!r} needs the package matplotlib, which is not installed: {INSTALL}") from None
    names = [field.name for field in dataclasses.fields(estimates[0].memory) if field.name != "host"]
    figure = Figure(figsize=(9, 1.6 + 0.34 * len(estimates)), layout="constrained")
    axes = figure.subplots()
    labels = [one.job.strategy for one in estimates]
    begin = [0.0] * len(estimates)
    for name, colour in zip(names, _COLOURS, strict=True):
        widths = [getattr(one.memory, name) / GIB for one in estimates]
        axes.barh(range(len(labels)), widths, left=begin, label=name, color=colour)
        begin = [first + width for first, width in zip(begin, widths, strict=True)]
    axes.axvline(estimates[0].job.gpu_memory / GIB, color="black", linestyle="--", label="a device has")
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("GiB on a device")
    axes.set_title(f"{estimates[0].job.model.parameters:,} parameters on {estimates[0].job.gpus} devices")
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=120)
