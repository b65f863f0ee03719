"""The rows of all cases that have run on one machine, in one JSON file that is whole at any time."""

import collections
import json
import os
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""`stage`, `case`, `outcome` ("passed", "failed", "shown" or "skipped"), `figures`, `note`, `seconds`."""


class Results:
    """Rows by stage and case.

    Args:
        path: of the file.
        machine: device, versions and commit that the rows belong to.
        rows: of earlier runs there.
    """

    def __init__(self, path: Path, machine: dict[str, Any], rows: list[Row]):
        self.path, self.machine = path, machine
        self.rows: dict[tuple[str, str], Row] = {(row["stage"], row["case"]): row for row in rows}

    @classmethod
    def open(cls, path: Path, machine: dict[str, Any]) -> "Results":
        """Go on with the file, or begin anew where it is of another machine, version or commit (that one is kept)."""
        if not path.exists():
            return cls(path, machine, [])
        earlier = cls.read(path)
        if earlier.machine == machine:
            return earlier
        os.replace(path, path.with_name(f"{path.stem}.{earlier.machine['commit']}{path.suffix}"))
        return cls(path, machine, [])

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Read a file as it is."""
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(path, content["machine"], content["rows"])

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self.rows

    @property
    def failed(self) -> list[Row]:
        """The rows of cases that failed."""
        return [row for row in self.rows.values() if row["outcome"] == "failed"]

    def add(self, row: Row) -> None:
        """Note a row; the file is replaced as a whole."""
        self.rows[row["stage"], row["case"]] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {"machine": self.machine, "rows": list(self.rows.values())}
        partial = self.path.with_name(f"{self.path.name}.partial")
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, self.path)

    def counts(self) -> dict[str, int]:
        """Return how many cases had each outcome."""
        return dict(collections.Counter(row["outcome"] for row in self.rows.values()))

    def summary(self) -> str:
        """Return one line: outcomes, device, file."""
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.counts().items()))
        return f"{counts or 'nothing ran'}; {self.machine['gpu'] or self.machine['device']}; {self.path}"
