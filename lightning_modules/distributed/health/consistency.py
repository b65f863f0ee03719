"""Check before training that all ranks have the same settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from ...common.collectives import gather_objects

_MAX_LINES = 12
"""Maximum number of facts in the error."""

_MAX_RANKS = 6
"""Maximum number of ranks listed for a value."""

_MAX_CHARACTERS = 200
"""Maximum number of characters shown of a value."""


def require_same(facts: Mapping[str, str], remedy: str) -> None:
    """Check that all ranks have the same settings. Must be called on all ranks.

    Does nothing without a process group. Ranks exchange a digest of 32 bytes, and the facts only if
    the digests differ.

    Args:
        facts: the settings by the names that users know them by.
        remedy: the last sentence of the error.

    Raises:
        ValueError: raised on all ranks. Lists each fact that differs, with the ranks of each value.
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
    """Return a line for each fact that differs between ranks.

    Args:
        gathered: the facts of each rank.
    """
    # Names of all facts in order. A dict serves as an ordered set.
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
    """Return the sort key of a value: more ranks first, then lower ranks."""
    _, ranks = value_and_ranks
    return -len(ranks), ranks


def _processes(ranks: list[int]) -> str:
    """Format a list of ranks, of which at most `_MAX_RANKS` are shown."""
    if len(ranks) == 1:
        return f"process {ranks[0]}"
    listed_ranks = ", ".join(str(rank) for rank in ranks[:_MAX_RANKS])
    if len(ranks) > _MAX_RANKS:
        listed_ranks += f" and {len(ranks) - _MAX_RANKS} more"
    return f"processes {listed_ranks}"
