"""Compare the settings of all processes before training."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from ...common.collectives import gather_objects

_MAX_LINES = 12
"""The error lists at most this number of facts."""

_MAX_RANKS = 6
"""The error lists at most this number of ranks for a value."""

_MAX_CHARACTERS = 200
"""The error shows at most this number of characters of a value."""


def require_same(facts: Mapping[str, str], remedy: str) -> None:
    """Check that all processes have the same settings. All processes must call this.

    Nothing is checked without a process group. Only a digest of 32 bytes is exchanged, and the
    facts themselves if it differs.

    Args:
        facts: the settings by the names that users know.
        remedy: the last sentence of the error.

    Raises:
        ValueError: in all processes; names each fact that differs, with the processes that have
            each value.
    """
    # Sorted, because ranks may list the facts in different orders.
    text = json.dumps(sorted(facts.items()))
    digest = hashlib.sha256(text.encode()).hexdigest()
    digests = gather_objects(digest)
    if len(set(digests)) == 1:
        return

    all_differences = differences(gather_objects(dict(facts)))
    lines = ["The processes do not have the same settings:"]
    lines += all_differences[:_MAX_LINES]
    if len(all_differences) > _MAX_LINES:
        lines.append(f"- and {len(all_differences) - _MAX_LINES} more")
    lines.append(remedy)
    raise ValueError("\n".join(lines))


def differences(gathered: list[dict[str, str]]) -> list[str]:
    """Return a line for each fact that differs between processes.

    Args:
        gathered: the facts of each process, by rank.
    """
    # The names of all facts, in their order; a dict keeps it.
    names: dict[str, None] = {}
    for facts in gathered:
        names.update(dict.fromkeys(facts))

    lines: list[str] = []
    for name in names:
        ranks_by_value: dict[str, list[int]] = {}
        for rank, facts in enumerate(gathered):
            value = facts.get(name, "missing")
            ranks_by_value.setdefault(value, []).append(rank)
        if len(ranks_by_value) == 1:
            continue

        # The value of the majority comes first, so that the deviating one is easy to see.
        descriptions: list[str] = []
        for value, ranks in sorted(ranks_by_value.items(), key=_most_ranks_first):
            descriptions.append(f"{value[:_MAX_CHARACTERS]} in {_processes(ranks)}")
        lines.append(f"- {name}: {', '.join(descriptions)}")
    return lines


def _most_ranks_first(value_and_ranks: tuple[str, list[int]]) -> tuple[int, list[int]]:
    """Return the sort key of a value: the number of its ranks, then the ranks."""
    _, ranks = value_and_ranks
    return -len(ranks), ranks


def _processes(ranks: list[int]) -> str:
    """Return the processes of these ranks as text; at most `_MAX_RANKS` are listed."""
    if len(ranks) == 1:
        return f"process {ranks[0]}"
    listed_ranks = ", ".join(str(rank) for rank in ranks[:_MAX_RANKS])
    if len(ranks) > _MAX_RANKS:
        listed_ranks += f" and {len(ranks) - _MAX_RANKS} more"
    return f"processes {listed_ranks}"
