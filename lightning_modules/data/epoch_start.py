"""How an iteration of somebody else's loader began, so that it can be gone through once more to where it was."""

from __future__ import annotations

from typing import Any

import torch

from ..common.seeding import capture_host_rng, restore_host_rng
from .rng_discovery import own_states, restore_own, what_draws


class EpochStart:
    """The generators that give an iteration its order: the global ones on the CPU, and those of the loader.

    Args:
        loader: has not yet begun the iteration. A `generator` of its own, or of its sampler, is a `torch.Generator`.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.rng = capture_host_rng()
        self.generators = _states(loader)
        self.own = own_states(*what_draws(loader))

    def state_dict(self) -> dict[str, Any]:
        """The generators as they were, and the loader's own as they are now."""
        own = {"own": self.own, "own_now": own_states(*what_draws(self.loader))}
        return {"began": self.rng, "generators": self.generators, "generators_now": _states(self.loader), **own}


def begin_again(loader: Any, state: dict[str, Any]) -> None:
    """Put all generators where they were when the iteration of a `EpochStart.state_dict` began."""
    restore_host_rng(state["began"])
    _set(loader, state["generators"])
    restore_own(state.get("own"), *what_draws(loader))


def begin_after(loader: Any, state: dict[str, Any]) -> None:
    """Put the loader's own generators where that iteration left them."""
    _set(loader, state["generators_now"])
    restore_own(state.get("own_now"), *what_draws(loader))


def _own(loader: Any) -> list[torch.Generator]:
    """Each generator once: a DataLoader shares its own with the sampler that it makes."""
    sampler = getattr(loader, "sampler", None)
    found = [getattr(part, "generator", None) for part in (loader, sampler)]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def _states(loader: Any) -> list[torch.Tensor]:
    return [generator.get_state() for generator in _own(loader)]


def _set(loader: Any, states: list[torch.Tensor]) -> None:
    for generator, state in zip(_own(loader), states, strict=False):
        generator.set_state(state)
