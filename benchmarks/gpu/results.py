"""The rows of all cases that have run on one machine, in one JSON file that is whole at any
time.
"""

import collections
import json
import os
import time
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""`stage`, `case`, `outcome` ("passed", "failed", "shown" or "skipped"), `figures`, `note`,
`seconds`, `commit`.
"""


class Results:
    """Rows by stage and case; those of an earlier commit stay until their case has run again.

    Args:
        path: of the file.
        machine: device and versions that the rows belong to.
        rows: of earlier runs there.
        commit: that runs now.
    """

    def __init__(self, path: Path, machine: dict[str, Any], rows: list[Row], commit: str = ""):
        self.path, self.machine, self.commit = path, machine, commit
        self.rows: dict[tuple[str, str], Row] = {(row["stage"], row["case"]): row for row in rows}

    @classmethod
    def open(cls, path: Path, machine: dict[str, Any], commit: str) -> "Results":
        """Go on with the file, or begin anew where it is of another machine or of other versions
        (that one is kept).
        """
        earlier = cls.read(path) if path.exists() else None
        if earlier is not None and earlier.machine != machine:
            os.replace(path, path.with_name(f"{path.stem}.{time.time_ns()}{path.suffix}"))
            earlier = None
        return cls(path, machine, list(earlier.rows.values()) if earlier else [], commit)

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Read a file as it is."""
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(path, content["machine"], content["rows"])

    def __contains__(self, key: tuple[str, str]) -> bool:
        """Return whether a case has run at this commit."""
        return key in self.rows and self.rows[key]["commit"] == self.commit

    @property
    def failed(self) -> list[Row]:
        """The rows of cases that failed."""
        return [row for row in self.rows.values() if row["outcome"] == "failed"]

    def add(self, row: Row) -> None:
        """Note a row; the file is replaced as a whole."""
        self.rows[row["stage"], row["case"]] = {**row, "commit": self.commit}
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
        return (
            f"{counts or 'nothing ran'}; {self.machine['gpu'] or self.machine['device']}; "
            f"{self.path}"
        )
