"""`docs/develop/gpu.md` and the README's row, made from the results that are committed beside
the page.
"""

import re
from pathlib import Path
from typing import Any

from .results import Results

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "develop" / "gpu.md"
PUBLISHED = PAGE.with_suffix(".json")
README_ROW = re.compile(r"^\| CUDA.*\n", re.MULTILINE)

BEGIN, END = "<!-- results: python -m benchmarks gpu --publish -->\n", "<!-- end of results -->\n"


def publish(results: Path) -> None:
    """Copy results beside the page, and write the page and the README's row anew."""
    PUBLISHED.write_text(results.read_text(encoding="utf-8"), encoding="utf-8")
    write()


def write() -> None:
    """Write the page and the README's row from the results that are committed."""
    PAGE.write_text(page(), encoding="utf-8")
    readme = ROOT / "README.md"
    readme.write_text(
        README_ROW.sub(readme_row(), readme.read_text(encoding="utf-8")), encoding="utf-8"
    )


def published() -> Results | None:
    """Return the committed results; those of a rehearsal do not count."""
    results = Results.read(PUBLISHED) if PUBLISHED.exists() else None
    return results if results and results.machine["device"] == "cuda" else None


def readme_row() -> str:
    """Return the line that says what ran on a GPU."""
    results = published()
    if not results:
        return (
            "| CUDA ([pretended in CI](docs/develop/gpu.md); `make gpu` on hardware) | not run "
            "| |\n"
        )
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(results.counts().items()))
    return (
        f"| CUDA, one device: {counts} | {results.machine['gpu']} | [On a "
        "GPU](docs/develop/gpu.md) |\n"
    )


def page() -> str:
    """Return the page with the results that are committed."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    results = published()
    outcome = (
        _measured(results) if results else "Not run yet: no machine with a GPU was available.\n"
    )
    return before + BEGIN + outcome + END + rest.partition(END)[2]


def _measured(results: Results) -> str:
    machine = ", ".join(
        f"{name} {value}" for name, value in results.machine.items() if value is not None
    )
    lines = [
        f"{machine}. `docs/develop/gpu.json` has everything.\n",
        "| stage | case | outcome | figures | commit |",
        "|---|---|---|---|---|",
    ]
    for row in results.rows.values():
        figures = "; ".join(
            f"{name}: {value:.4g}" for name, value in figures_of(row, results).items()
        )
        cell = figures or " ".join(row["note"].splitlines()[-1:])
        lines.append(
            f"| {row['stage']} | {row['case']} | {row['outcome']} | {cell} | {row['commit']} |"
        )
    return "\n".join(lines) + "\n"


def figures_of(row: dict[str, Any], results: Results) -> dict[str, float]:
    """Return the figures of a row, with the ratio to the bare loop where there is one."""
    variant, _, side = row["case"].rpartition(", ")
    bare = results.rows.get((row["stage"], f"{variant}, bare loop"))
    step = "milliseconds a step"
    if side == "bare loop" or not bare or step not in bare["figures"] or step not in row["figures"]:
        return row["figures"]
    return {"of the bare loop": row["figures"][step] / bare["figures"][step], **row["figures"]}
