"""Compare the settings of all processes before training."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch
import torch.distributed as dist

from ...common.collectives import gather_objects, transport_device

_SHOWN = 12


def require_same(facts: Mapping[str, str], remedy: str) -> None:
    """Check that all processes have the same settings; collective, and nothing without a process group.

    Only a digest of 32 bytes is exchanged, and the facts themselves if it differs.

    Args:
        facts: the settings by the names that users know.
        remedy: the last sentence of the error.

    Raises:
        ValueError: in all processes; names each fact that differs, with the processes that have each value.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return

    # Exchange a digest.
    text = json.dumps(sorted(facts.items()))
    digest = torch.tensor(list(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8, device=transport_device())
    digests = [torch.empty_like(digest) for _ in range(dist.get_world_size())]
    dist.all_gather(digests, digest)
    if all(torch.equal(other, digests[0]) for other in digests[1:]):
        return

    # They differ: exchange the settings themselves.
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

    lines = []
    for name in names:
        ranks = _ranks_by_value(name, gathered)
        if len(ranks) > 1:
            # The value of the majority comes first, so that the deviating one is easy to see.
            ordered = sorted(ranks.items(), key=lambda item: (-len(item[1]), item[1]))
            values = [f"{value[:200]} in {_name(with_value)}" for value, with_value in ordered]
            lines.append(f"- {name}: {', '.join(values)}")
    return lines


def _ranks_by_value(name: str, gathered: list[dict[str, str]]) -> dict[str, list[int]]:
    ranks: dict[str, list[int]] = {}
    for rank, facts in enumerate(gathered):
        ranks.setdefault(facts.get(name, "missing"), []).append(rank)
    return ranks


def _name(ranks: list[int]) -> str:
    """Return the processes of these ranks as text, the first six by number."""
    if len(ranks) == 1:
        return f"process {ranks[0]}"
    shown = ", ".join(map(str, ranks[:6]))
    if len(ranks) > 6:
        shown += f" and {len(ranks) - 6} more"
    return f"processes {shown}"
