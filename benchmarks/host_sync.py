"""How often the host waits for the device in a step between two logs, and for a batch of an
evaluation.

Each wait may leave the device without work. They are counted on a pretended device, which
`docs/develop/gpu.md` describes, in the settings of `tests/helpers/devices/counted_waits.py`.
`python -m benchmarks.host_sync publish` writes the table into that page.
"""

import logging
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .common import LIBRARIES, Figure, library, report

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "develop" / "gpu.md"
BEGIN = "<!-- waits: python -m benchmarks.host_sync publish -->\n"
END = "<!-- end of waits -->\n"
ROW = re.compile(r"^\| (.+) \| (.+) \| (.+) \| (.*) \|$", re.MULTILINE)

COUNT = 4
"""Steps, and batches, in which waits are counted."""

Waits = dict[str, Counter[tuple[str, str]]]
"""Operations and lines that waited, by the library; one that does not have the setting is left
out.
"""


def waits_of_steps() -> dict[str, Waits]:
    """Return the waits of steps between two logs, by setting."""
    from helpers.devices import counted_waits as cases

    settings = {**cases.SETTINGS, "control: a loss that is read": cases.CONTROL}
    return _counted(settings, lambda api, setting: cases.waits_between_logs(api, setting, COUNT))


def waits_of_evaluations() -> dict[str, Waits]:
    """Return the waits of batches of an evaluation, by setting."""
    from helpers.devices import counted_waits as cases

    return _counted(
        cases.EVALUATIONS,
        lambda api, setting: cases.waits_of_batches(api, setting, "evaluate", COUNT),
    )


def _counted(
    settings: dict[str, Any], count: Callable[[Any, Any], Counter[tuple[str, str]]]
) -> dict[str, Waits]:
    from helpers.devices import pretended_cuda

    waits: dict[str, Waits] = {}
    with pretended_cuda.pretended_device():
        for title, setting in settings.items():
            waits[title] = {}
            for name in LIBRARIES:
                if name == "lightrainer" or not setting.is_only_here:
                    waits[title][name] = count(library(name), setting)
    return waits


def table(waits: dict[str, Waits], unit: str) -> list[str]:
    """Return the lines of the table in Markdown, with the lines of lightrainer that waited."""
    rows = [f"| {unit} | transformers | lightrainer | where |", "|---|---|---|---|"]
    for title, by_library in waits.items():
        lines = ", ".join(
            sorted({f"`{line.split(':')[0]}`" for _, line in by_library["lightrainer"]})
        )
        counts = [_per_unit(by_library.get(name)) for name in LIBRARIES]
        rows.append(f"| {title} | {' | '.join(counts)} | {lines} |")
    return rows


def _per_unit(waits: Counter[tuple[str, str]] | None) -> str:
    return "-" if waits is None else f"{waits.total() / COUNT:g}"


def published() -> dict[str, tuple[str, str]]:
    """Return the figures of both libraries on the page, by setting."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    rows = ROW.findall(rest.partition(END)[0])
    return {title: (reference, own) for title, reference, own, _ in rows}


def publish(lines: list[str]) -> None:
    """Write the tables into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    content = "\n".join(lines) + "\n"
    PAGE.write_text(before + BEGIN + content + END + rest.partition(END)[2], encoding="utf-8")


def main() -> list[Figure]:
    sys.path.insert(0, str(ROOT / "tests"))
    logging.disable(logging.WARNING)
    steps = waits_of_steps()
    evaluations = waits_of_evaluations()

    rows = []
    for title, by_library in {**steps, **evaluations}.items():
        counts = ", ".join(
            f"{name} {waits.total() / COUNT:g}" for name, waits in by_library.items()
        )
        rows.append((title, counts))
    results = {"steps": _summary(steps), "evaluations": _summary(evaluations)}
    waits_per_step = {
        name: waits["lightrainer"].total() / COUNT
        for name, waits in {**steps, **evaluations}.items()
    }
    most = max(waits_per_step[name] for name in evaluations)
    figures = [
        Figure(
            "host synchronisations in a step between two logs, by default",
            waits_per_step["defaults"],
            0,
        ),
        Figure("host synchronisations for a batch of an evaluation, at most", most, 1),
    ]
    if "publish" in sys.argv:
        publish(
            [*table(steps, "in a step"), "", *table(evaluations, "for a batch of an evaluation")]
        )
    return report("host_sync", rows, results, figures)


def _summary(waits: dict[str, Waits]) -> dict[str, Any]:
    return {
        title: {
            name: {f"{kind} {line}": count for (kind, line), count in counts.items()}
            for name, counts in each.items()
        }
        for title, each in waits.items()
    }


if __name__ == "__main__":
    main()
