"""Estimates as a picture: a bar for each strategy, stacked by what the memory is for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .estimation import Estimate
from .job import GIB

INSTALL = "pip install 'lightrainer[plot]'"
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#eeca3b", "#9d755d")


def draw(estimates: Sequence[Estimate], path: str) -> None:
    """Draw the memory of a device under each strategy, with a line where the device's memory ends.

    Args:
        estimates: at least one; all for the same device.
        path: of the file; its ending says which kind.

    Raises:
        ImportError: there is no matplotlib; says how to install it.
        OSError: the file cannot be written.
        ValueError: matplotlib does not know the ending.
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
