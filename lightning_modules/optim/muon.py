"""Muon for the matrices of a model, and AdamW for everything else, as one optimizer.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from ..common.enums import MUON
from ..internals.compiler import step_without_compiler

_HEAD = re.compile(r"(?:^|\.)(?:lm_head|head|classifier|score|qa_outputs|cls)\.")


def matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that Muon trains: matrices outside of embeddings and output layers.

    Embeddings are those of an `nn.Embedding`, and what is tied to one. An output layer is that of
    `get_output_embeddings`, or a module called `lm_head`, `head`, `classifier`, `score`,
    `qa_outputs` or `cls`.

    Raises:
        ValueError: the model has no such parameters.
    """
    output_layer = None
    if hasattr(model, "get_output_embeddings"):
        output_layer = cast("Any", model).get_output_embeddings()
    excluded: set[nn.Parameter] = set()
    for module in model.modules():
        if isinstance(module, nn.Embedding) or module is output_layer:
            excluded.update(module.parameters())

    parameters: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and parameter not in excluded and not _HEAD.search(name):
            parameters.append(parameter)
    if not parameters:
        raise ValueError(
            f"optim={MUON!r} trains matrices, but the model has none outside of embeddings and "
            "output layers. Choose another optimizer."
        )
    return parameters


def split_groups(
    groups: Iterable[dict[str, Any]], parameters: Iterable[Tensor]
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Split each parameter group into the given parameters, and all others.

    Returns:
        The groups with the given parameters, and those with the others.
    """
    given_parameters = set(parameters)
    given_groups: list[dict[str, object]] = []
    other_groups: list[dict[str, object]] = []
    for group in groups:
        given_params = [tensor for tensor in group["params"] if tensor in given_parameters]
        other_params = [tensor for tensor in group["params"] if tensor not in given_parameters]
        given_groups.append({**group, "params": given_params})
        other_groups.append({**group, "params": other_params})
    return given_groups, other_groups


class MuonWithAdamW(Optimizer):
    """Steps torch's Muon and AdamW, which share the groups and the state of this optimizer.

    Args:
        groups: parameter groups.
        lr: learning rate of both.
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
        muon_groups, adamw_groups = split_groups(groups, matrices)
        self._muon = torch.optim.Muon(muon_groups, lr=lr, **kwargs)
        self._adamw = AdamW(adamw_groups, lr=lr, **adamw)
        super().__init__([*self._muon.param_groups, *self._adamw.param_groups], {"lr": lr})
        self._share_state()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Share a state that was loaded."""
        vars(self).update(state)
        self._share_state()

    def _share_state(self) -> None:
        """Give both optimizers their groups, and the state of this one."""
        muon_group_count = len(self._muon.param_groups)
        muon_groups = self.param_groups[:muon_group_count]
        adamw_groups = self.param_groups[muon_group_count:]
        for optimizer, groups in ((self._muon, muon_groups), (self._adamw, adamw_groups)):
            step_without_compiler(optimizer)
            optimizer.__setstate__({"state": self.state, "param_groups": groups})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step both optimizers."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._muon.step()
        self._adamw.step()
        return loss
