"""All figures of one run of the benchmarks: a table, `build/bench/figures.json`, and a picture
beside it.
"""

import json
from pathlib import Path

from .common import Figure, versions

FOLDER = Path("build") / "bench"
COLOURS = {"kept": "tab:green", "missed": "tab:red"}


def write(figures: dict[str, list[Figure]]) -> str:
    """Write the figures, by the name of their benchmark, and return the table."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "benchmark": name,
            "what": each.what,
            "value": each.value,
            "goal": each.goal,
            "verdict": each.verdict,
        }
        for name, those in figures.items()
        for each in those
    ]
    content = {"figures": rows, "versions": versions()}
    (FOLDER / "figures.json").write_text(f"{json.dumps(content, indent=2)}\n", encoding="utf-8")
    every = [each for those in figures.values() for each in those]
    draw(every, FOLDER / "figures.png")
    return "\n".join([*table(every), f"written to {FOLDER}"])


def table(figures: list[Figure]) -> list[str]:
    """Return the lines of the table in Markdown: what, value, goal, kept or missed."""
    rows = [
        f"| {each.what} | {each.value:.2f} | {each.goal:g} | {each.verdict} |" for each in figures
    ]
    return ["| what | measured | goal | |", "|---|---|---|---|", *rows]


def draw(figures: list[Figure], path: Path) -> None:
    """Draw how much of its goal each figure takes; those that are to be nothing at all are left
    out.
    """
    from matplotlib.figure import Figure as Picture

    shown = [each for each in reversed(figures) if each.goal]
    picture = Picture(figsize=(9, 1 + 0.3 * len(shown)), layout="constrained")
    axes = picture.add_subplot()
    shares = [max(0.0, each.value / each.goal) for each in shown]
    bars = axes.barh(
        [each.what for each in shown], shares, color=[COLOURS[each.verdict] for each in shown]
    )
    axes.bar_label(bars, [f"{each.value:.2f}" for each in shown], padding=3)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel("measured, as a share of the goal")
    picture.savefig(path, dpi=120)
