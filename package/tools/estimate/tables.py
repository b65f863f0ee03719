"""Estimates as text, and as a plot."""

# pyright: reportMissingImports=false
# The folders beside this one are mapped to subpackages only when the package is built.
from __future__ import annotations

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
    "logits": "logits and their gradient",
    "buffers": "communication buffers",
}


def estimate_table(estimate: Estimate) -> str:
    """Format an estimate: memory by purpose, and the collectives of a step."""
    lines = [*_heading(estimate), f"strategy: {estimate.job.strategy}", ""]

    # Memory.
    rows: list[tuple[str, ...]] = [("memory of a device", "")]
    for name, label in _LABELS.items():
        number = getattr(estimate.memory, name)
        if number:
            rows.append((label, size(number)))
    rows.append(("total", size(estimate.memory.total)))
    lines += [*table(rows), ""]

    # Traffic.
    if estimate.traffic:
        rows = [("sent by a device in a step", "tensors", "devices", "sent")]
        for collective in estimate.traffic:
            name = f"{collective.kind} of {collective.what}"
            devices = str(collective.group)
            rows.append((name, size(collective.bytes), devices, size(collective.sent)))
        rows.append(("total to other devices", "", "", size(estimate.sent)))
        lines += [*table(rows), ""]

    verdict = "fits" if estimate.fits else "DOES NOT FIT"
    device_memory = size(estimate.job.gpu_memory)
    lines.append(f"{verdict} into {device_memory} of device memory, with 10% kept free")
    return "\n".join(lines)


def comparison_table(estimates: list[Estimate]) -> str:
    """Format all strategies, one line each, and the recommended one."""
    rows = [("strategy", "accumulation", "device", "sent", "fits")]
    for estimate in estimates:
        job = estimate.job
        memory = size(estimate.memory.total)
        sent = size(estimate.sent) if estimate.sent else "-"
        fits = "yes" if estimate.fits else "no"
        rows.append((job.strategy, str(job.accumulation), memory, sent, fits))
    advice = _advice(estimates)
    return "\n".join([*_heading(estimates[0]), "", *table(rows), "", advice])


def _advice(estimates: list[Estimate]) -> str:
    """Return which strategy to use."""
    recommended = best(estimates)
    if recommended is None:
        return (
            "None fits: use more devices, a smaller batch, shorter sequences, devices that share "
            "them (--cp, --sp), or an optimizer with less state."
        )
    job = recommended.job
    if job.accumulation == estimates[0].job.accumulation:
        return f"Recommended: {job.strategy}."
    return f"Recommended: {job.strategy}, with gradient_accumulation_steps={job.accumulation}."


def size(number: float) -> str:
    """Format a number of bytes, such as `13.04 GiB`."""
    for unit, bytes_of_unit in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= bytes_of_unit:
            return f"{number / bytes_of_unit:,.2f} {unit}"
    return f"{number:,.0f} B"


def _heading(estimate: Estimate) -> list[str]:
    """Return lines about the model and the training."""
    job = estimate.job
    model = job.model
    lines = [
        f"{model.parameters:,} parameters: {model.layers} layers of width {model.hidden:,}, "
        f"{model.heads} heads ({model.kv_heads} of keys and values), MLP {model.intermediate:,}, "
        f"vocabulary {model.vocabulary:,}"
    ]
    if model.assumed:
        lines.append(f"  {model.assumed}")
    tokens_of_step = job.data_parallel * job.tokens * job.accumulation
    lines.append(
        f"{job.gpus} devices; {job.batch} x {job.sequence:,} tokens in a micro-batch, "
        f"{job.accumulation} of them in a step: {tokens_of_step:,} tokens"
    )
    lines.append(f"{job.precision}, {job.optim}, attention: {job.attention}")
    return lines


def draw(estimates: Sequence[Estimate], path: str) -> None:
    """Plot the memory of a device for each strategy, with a line at the device's capacity.

    Args:
        estimates: at least one; all for the same model and devices.
        path: path of the file, whose suffix determines its format.

    Raises:
        ImportError: matplotlib is not installed; the message says how to install it.
        OSError: the file cannot be written.
        ValueError: matplotlib does not support the suffix.
    """
    check_matplotlib(f"plot={path!r}")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.6 + 0.34 * len(estimates)), layout="constrained")
    axes = figure.subplots()

    # A bar for each strategy, in which the purposes follow each other.
    strategies = [estimate.job.strategy for estimate in estimates]
    starts = [0.0] * len(estimates)
    for name in _LABELS:
        widths = [getattr(estimate.memory, name) / GIB for estimate in estimates]
        axes.barh(strategies, widths, left=starts, label=name)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]

    job = estimates[0].job
    axes.axvline(job.gpu_memory / GIB, color="black", linestyle="--", label="device memory")
    axes.invert_yaxis()
    axes.set_xlabel("GiB on a device")
    axes.set_title(f"{job.model.parameters:,} parameters on {job.gpus} devices")
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=120)
