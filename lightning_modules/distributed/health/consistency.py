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
    text = json.dumps(sorted(facts.items()))
    digest = torch.tensor(list(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8, device=transport_device())
    digests = [torch.empty_like(digest) for _ in range(dist.get_world_size())]
    dist.all_gather(digests, digest)
    if all(torch.equal(one, digests[0]) for one in digests[1:]):
        return
    lines = differences(gather_objects(dict(facts)))
    more = [f"- and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    listed = "\n".join([*lines[:_SHOWN], *more])
    raise ValueError(f"The processes do not have the same settings:\n{listed}\n{remedy}")


def differences(gathered: list[dict[str, str]]) -> list[str]:
    """Return a line for each fact that differs between processes.

    Args:
        gathered: the facts of each process, by rank.
    """
    names = dict.fromkeys(name for facts in gathered for name in facts)
    return [line for name in names if (line := _difference(name, gathered))]


def _difference(name: str, gathered: list[dict[str, str]]) -> str | None:
    ranks: dict[str, list[int]] = {}
    for rank, facts in enumerate(gathered):
        ranks.setdefault(facts.get(name, "not there"), []).append(rank)
    if len(ranks) == 1:
        return None
    # The value of the majority comes first, so that the deviating one is easy to see.
    ordered = sorted(ranks.items(), key=lambda item: (-len(item[1]), item[1]))
    return f"- {name}: " + ", ".join(f"{value[:200]} in {_named(who)}" for value, who in ordered)


def _named(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"process {ranks[0]}"
    shown = ", ".join(map(str, ranks[:6]))
    return f"processes {shown}" + (f" and {len(ranks) - 6} more" if len(ranks) > 6 else "")
