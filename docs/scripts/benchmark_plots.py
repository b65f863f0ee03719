"""Draw the figures of the benchmarks: `python docs/scripts/benchmark_plots.py`, with matplotlib.

The numbers are those that are committed: the tables of docs/develop/benchmarks.md, and gpu.json
beside it. Text in the pictures stays text, so that a test finds each number in them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parents[1]
IMAGES = DOCS / "images"
PAGE = DOCS / "develop" / "benchmarks.md"
GPU = DOCS / "develop" / "gpu.json"

RATIOS = {
    "a training step beyond a bare torch loop": "training step, beyond a bare loop",
    "from the start of a process to": "from the start to the first step",
    "peak of the tensors in steps of a GPT": "peak of the tensors of a step",
    "the whole process meanwhile": "peak of the whole process",
    "to the first step of 20 million samples": "first step of 20 million samples",
    "memory of an order": "memory of the order of samples",
    "a callback that does nothing": "a callback that does nothing",
    "training stands still for a periodic checkpoint": "standstill of a checkpoint of 240 MB",
    "from the last step to the end of `train()`": "end of training with such a checkpoint",
    "20,000 steps with a log each": "20,000 steps with a log each",
    "evaluation with 128 MB of logits": "evaluation with 128 MB of logits",
    "the same with predictions (89 us bare)": "evaluation batch, beyond a bare loop",
    "the whole trial (tiny model)": "trial of a hyperparameter search",
}
"""The beginnings of rows, with their labels in the picture."""
SIZES = ("0.2 MB", "3 MB", "24 MB", "70 MB", "240 MB")
GPU_CASES = ("bf16", "bf16, compile", "bf16, FSDP on one device", "fp32")
SIDES = ("bare loop", "transformers", "lightrainer")
COLOURS = {"bare loop": "#9e9e9e", "transformers": "#f4a340", "lightrainer": "#673ab7"}


class Series(NamedTuple):
    """Bars of one colour, one for each label."""

    name: str
    values: list[float]


def table_row(beginning: str) -> list[str]:
    """Return the cells of the first row of the page that begins so.

    Raises:
        LookupError: the page has no such row.
    """
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"| {beginning}"):
            return [cell.strip() for cell in line.strip("|").split("|")]
    raise LookupError(f"{PAGE.name} has no row that begins with {beginning!r}")


def first_number(cell: str) -> float:
    """Return the first number in a cell."""
    return float(re.search(r"\d+(\.\d+)?", cell)[0])


def ratios() -> list[Series]:
    """Return the cost of each row, as a share of that with transformers."""
    return [Series("lightrainer", [first_number(table_row(row)[3]) for row in RATIOS])]


def standstills() -> list[Series]:
    """Return the milliseconds that a save stops a training, by the size of the checkpoint."""
    rows = [table_row(f"{size}, every third step") for size in SIZES]
    return [
        Series("transformers", [first_number(row[1]) for row in rows]),
        Series("lightrainer", [first_number(row[2]) for row in rows]),
    ]


def throughputs() -> list[Series]:
    """Return thousands of tokens a second on an H100."""
    rows = json.loads(GPU.read_text(encoding="utf-8"))["rows"]
    tokens = {
        row["case"]: row["figures"]["tokens a second"]
        for row in rows
        if row["stage"] == "throughput"
    }
    return [
        Series(side, [round(tokens[f"{case}, {side}"] / 1000, 1) for case in GPU_CASES])
        for side in SIDES
    ]


class Plot(NamedTuple):
    """A picture: labels, with a bar of each series."""

    labels: list[str]
    series: list[Series]
    axis: str
    is_logarithmic: bool = False
    mark: float | None = None
    """Where to draw a line."""


def plots() -> dict[str, Plot]:
    """Return all pictures by the name of their file."""
    return {
        "benchmark-ratios.svg": Plot(
            list(RATIOS.values()),
            ratios(),
            "cost with lightrainer, as a share of that with transformers 5.3.0 (line)",
            mark=1.0,
        ),
        "benchmark-saves.svg": Plot(
            [f"checkpoint of {size}" for size in SIZES],
            standstills(),
            "standstill of a save after every third step, in milliseconds",
            is_logarithmic=True,
        ),
        "benchmark-gpu.svg": Plot(
            list(GPU_CASES), throughputs(), "thousands of tokens a second, GPT-2 on an H100"
        ),
    }


def texts(plot: Plot) -> list[str]:
    """Return what a picture has to say: its labels and numbers."""
    values = [f"{value:g}" for series in plot.series for value in series.values]
    return [*plot.labels, *values, plot.axis]


def draw(plot: Plot, path: Path) -> None:
    """Write a picture of horizontal bars, the first label on top."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lightrainer"})
    count = len(plot.series)
    figure = Figure(figsize=(8, 1 + 0.26 * len(plot.labels) * (count + 0.4)), layout="constrained")
    axes = figure.add_subplot()

    # The bars of a label lie below each other.
    for index, series in enumerate(plot.series):
        places = [
            place + (index - (count - 1) / 2) * 0.8 / count for place in range(len(plot.labels))
        ]
        bars = axes.barh(
            places, series.values, 0.8 / count, label=series.name, color=COLOURS[series.name]
        )
        axes.bar_label(bars, [f"{value:g}" for value in series.values], padding=3, fontsize=8)
    axes.set_yticks(range(len(plot.labels)), plot.labels)
    axes.invert_yaxis()

    # Axes, line and legend.
    if plot.is_logarithmic:
        axes.set_xscale("log")
    if plot.mark is not None:
        axes.axvline(plot.mark, color=COLOURS["transformers"], linewidth=2)
    axes.margins(x=0.12)
    axes.set_xlabel(plot.axis)
    axes.spines[["top", "right"]].set_visible(False)
    if count > 1:
        axes.legend(frameon=False, loc="best")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    for name, plot in plots().items():
        draw(plot, IMAGES / name)
        print(IMAGES / name)
