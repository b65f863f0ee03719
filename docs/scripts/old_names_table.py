"""Write the names of transformers 4 into `docs/user/migrate.md`:
`python docs/scripts/old_names_table.py`.
"""

from __future__ import annotations

from pathlib import Path

from lightrainer.facade.arguments.old_names import OLD_NAMES
from lightrainer.interception.targets import RENAMED, dotted

PAGE = Path(__file__).resolve().parents[1] / "user" / "migrate.md"
BEGIN, END = "<!-- table of old names: begin -->\n", "<!-- table of old names: end -->\n"


def tables() -> str:
    """Return the table of training arguments, then that of imported names."""
    lines = ["| training argument | now |", "|---|---|"]
    for name, old in OLD_NAMES.items():
        refused = "; a value that asks for more is refused" if old.refuses(object()) else ""
        lines.append(f"| `{name}` | {old.now}{refused} |")
    lines += ["", "| imported name | replacement |", "|---|---|"]
    lines += [
        f"| `{module}.{name}` | `{dotted(to)}` |"
        for module, names in RENAMED.items()
        for name, to in names.items()
    ]
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """Return the page with the tables of today."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + tables() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
