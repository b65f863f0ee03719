"""Format estimates as text, and draw them."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...callbacks.report.pictures import check_matplotlib
from ..command_line import table
from .estimation import Estimate, best
from .job import GIB

_LABELS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations",
    "logits": "logits, as the loss is computed",
    "buffers": "communication buffers",
}


def estimate_table(one: Estimate) -> str:
    """Format an estimate: memory by purpose, and the collectives of a step."""
    lines = [*_heading(one), f"strategy: {one.job.strategy}", ""]

    # Memory.
    values = dataclasses.asdict(one.memory)
    rows: list[tuple[str, ...]] = [("memory of a device", "")]
    rows += [(label, size(values[name])) for name, label in _LABELS.items() if values[name]]
    rows.append(("total", size(one.memory.total)))
    lines += [*table(rows), ""]

    # Traffic.
    if one.traffic:
        rows = [("sent by a device in a step", "tensors", "devices", "sent")]
        for collective in one.traffic:
            name = f"{collective.kind} of {collective.what}"
            rows.append(
                (name, size(collective.bytes), str(collective.group), size(collective.sent))
            )
        rows.append(("total to other devices", "", "", size(one.sent)))
        lines += [*table(rows), ""]

    verdict = "fits" if one.fits else "DOES NOT FIT"
    lines.append(f"{verdict} into {size(one.job.gpu_memory)} of device memory, with 10% kept free")
    return "\n".join(lines)


def comparison_table(estimates: list[Estimate]) -> str:
    """Format all strategies, one line each, and the recommended one."""
    rows = [("strategy", "accumulation", "device", "sent", "fits")]
    for one in estimates:
        job = one.job
        sent = size(one.sent) if one.sent else "-"
        fits = "yes" if one.fits else "no"
        rows.append((job.strategy, str(job.accumulation), size(one.memory.total), sent, fits))
    recommended = best(estimates)
    if recommended is None:
        advice = (
            "None fits: use more devices, a smaller batch, shorter sequences, or an optimizer with "
            "less state."
        )
    else:
        job = recommended.job
        advice = f"Take: {job.strategy}."
        if job.accumulation != estimates[0].job.accumulation:
            advice = f"Take: {job.strategy}, with gradient_accumulation_steps={job.accumulation}."
    return "\n".join([*_heading(estimates[0]), "", *table(rows), "", advice])


def size(number: float) -> str:
    """Format bytes, as in `13.04 GiB`."""
    for unit, bytes_of_unit in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= bytes_of_unit:
            return f"{number / bytes_of_unit:,.2f} {unit}"
    return f"{number:,.0f} B"


def _heading(one: Estimate) -> list[str]:
    job = one.job
    model = job.model
    tokens_of_a_step = job.data_parallel * job.tokens * job.accumulation
    lines = [
        (
            f"{model.parameters:,} parameters: {model.layers} layers of width {model.hidden:,}, "
            f"{model.heads} heads ({model.kv_heads} of keys and values), MLP "
            f"{model.intermediate:,}, vocabulary {model.vocabulary:,}"
        ),
        (
            f"{job.gpus} devices; {job.batch} x {job.sequence:,} tokens in a micro-batch, "
            f"{job.accumulation} of them in a step: {tokens_of_a_step:,} tokens"
        ),
        f"{job.precision}, {job.optim}, attention: {job.attention}",
    ]
    if model.assumed:
        lines.insert(1, f"  {model.assumed}")
    return lines


def draw(estimates: Sequence[Estimate], path: str) -> None:
    """Draw the memory of a device under each strategy, with a line at the device's memory.

    Args:
        estimates: at least one; all for the same device.
        path: of the file, with the ending of its kind.

    Raises:
        ImportError: matplotlib is not installed; says how to install it.
        OSError: the file cannot be written.
        ValueError: matplotlib does not know the ending of the path.
    """
    check_matplotlib(f"plot={path!r}")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.6 + 0.34 * len(estimates)), layout="constrained")
    axes = figure.subplots()
    labels = [one.job.strategy for one in estimates]
    left = [0.0] * len(estimates)
    for name in _LABELS:
        widths = [getattr(one.memory, name) / GIB for one in estimates]
        axes.barh(labels, widths, left=left, label=name)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.axvline(
        estimates[0].job.gpu_memory / GIB, color="black", linestyle="--", label="a device has"
    )
    axes.invert_yaxis()
    axes.set_xlabel("GiB on a device")
    axes.set_title(
        f"{estimates[0].job.model.parameters:,} parameters on {estimates[0].job.gpus} devices"
    )
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=120)
