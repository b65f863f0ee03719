"""Muon for the matrices of a model, and AdamW for everything else, as one optimizer.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from ..common.suggestions import MUON
from ..internals.compiler import step_without_compiler

_HEAD = re.compile(r"(?:^|\.)(?:lm_head|head|classifier|score|qa_outputs|cls)\.")


def matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that Muon trains: those of two dimensions, but for embeddings and
    output layers.

    Embeddings are those of an `nn.Embedding`, and what is tied to one. An output layer is that of
    `get_output_embeddings`, or a module called `lm_head`, `head`, `classifier`, `score`,
    `qa_outputs` or `cls`.

    Raises:
        ValueError: there is none.
    """
    output = getattr(model, "get_output_embeddings", lambda: None)()
    embeddings = [
        module for module in model.modules() if isinstance(module, nn.Embedding) or module is output
    ]
    others = {parameter for module in embeddings for parameter in module.parameters()}
    named = (
        (name, one) for name, one in model.named_parameters() if one.ndim == 2 and one not in others
    )
    if chosen := [parameter for name, parameter in named if not _HEAD.search(name)]:
        return chosen
    raise ValueError(
        f"optim={MUON!r} trains matrices, and the model has none. Choose another optimizer."
    )


def by_kind(
    groups: Iterable[dict[str, Any]], chosen: Iterable[Tensor]
) -> tuple[list[dict[str, Any]], ...]:
    """Split parameter groups into those of the chosen parameters, and those of the others."""
    wanted = set(chosen)
    return tuple(
        [
            {**group, "params": [one for one in group["params"] if (one in wanted) is kind]}
            for group in groups
        ]
        for kind in (True, False)
    )


class MuonWithAdamW(Optimizer):
    """Step two optimizers of torch, which share the groups and the state of this one.

    Args:
        groups: parameter groups.
        lr: of both.
        matrices: parameters that Muon trains.
        adamw: arguments of AdamW.
        kwargs: arguments of Muon.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: float,
        matrices: list[Tensor],
        adamw: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        muon, others = by_kind(groups, matrices)
        self._parts: tuple[Optimizer, ...] = (
            torch.optim.Muon(muon, lr=lr, **kwargs),
            AdamW(others, lr=lr, **adamw),
        )
        super().__init__([group for part in self._parts for group in part.param_groups], {"lr": lr})
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Hand a state that was loaded to both."""
        vars(self).update(state)
        self._share()

    def _share(self) -> None:
        groups = iter(self.param_groups)
        for part in self._parts:
            step_without_compiler(part)
            part.__setstate__(
                {"state": self.state, "param_groups": list(islice(groups, len(part.param_groups)))}
            )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step both."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for part in self._parts:
            part.step()
        return loss
