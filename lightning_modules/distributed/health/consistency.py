"""Compare the settings of all processes before training."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from ...common.collectives import gather_objects

_SHOWN = 12


def require_same(facts: Mapping[str, str], remedy: str) -> None:
    """Check that all processes have the same settings; collective.

    Nothing is checked without a process group. Only a digest of 32 bytes is exchanged, and the
    facts themselves if it differs.

    Args:
        facts: the settings by the names that users know.
        remedy: the last sentence of the error.

    Raises:
        ValueError: in all processes; names each fact that differs, with the processes that have
            each value.
    """
    digest = hashlib.sha256(json.dumps(sorted(facts.items())).encode()).hexdigest()
    if len(set(gather_objects(digest))) == 1:
        return

    lines = differences(gather_objects(dict(facts)))
    shown = lines[:_SHOWN]
    if len(lines) > _SHOWN:
        shown.append(f"- and {len(lines) - _SHOWN} more")
    raise ValueError("\n".join(["The processes do not have the same settings:", *shown, remedy]))


def differences(gathered: list[dict[str, str]]) -> list[str]:
    """Return a line for each fact that differs between processes.

    Args:
        gathered: the facts of each process, by rank.
    """
    names: dict[str, None] = {}
    for facts in gathered:
        names.update(dict.fromkeys(facts))

    lines: list[str] = []
    for name in names:
        ranks_of: dict[str, list[int]] = {}
        for rank, facts in enumerate(gathered):
            ranks_of.setdefault(facts.get(name, "missing"), []).append(rank)
        if len(ranks_of) == 1:
            continue

        # The value of the majority comes first, so that the deviating one is easy to see.
        values = sorted(ranks_of, key=lambda value: (-len(ranks_of[value]), ranks_of[value]))
        shown = [f"{value[:200]} in {_name(ranks_of[value])}" for value in values]
        lines.append(f"- {name}: {', '.join(shown)}")
    return lines


def _name(ranks: list[int]) -> str:
    """Return the processes of these ranks as text, the first six by number."""
    if len(ranks) == 1:
        return f"process {ranks[0]}"
    shown = ", ".join(map(str, ranks[:6]))
    if len(ranks) > 6:
        shown += f" and {len(ranks) - 6} more"
    return f"processes {shown}"
