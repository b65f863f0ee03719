"""Combine Muon for the matrices of a model and AdamW for its other parameters in one optimizer.

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

_MUON_OPTION = "ns_steps"
"""Option that only Muon's groups have. It identifies the optimizer of a loaded group."""


def matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that Muon trains: matrices except embeddings and output layers.

    Embeddings are parameters of an `nn.Embedding`, including tied ones. Output layers are the
    result of `get_output_embeddings`, and modules named `lm_head`, `head`, `classifier`, `score`,
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
    """Split each parameter group into the given parameters and the others.

    Returns:
        The groups with the given parameters, and those with the others.
    """
    selected = set(parameters)
    selected_groups: list[dict[str, object]] = []
    other_groups: list[dict[str, object]] = []
    for group in groups:
        selected_params = [tensor for tensor in group["params"] if tensor in selected]
        other_params = [tensor for tensor in group["params"] if tensor not in selected]
        selected_groups.append({**group, "params": selected_params})
        other_groups.append({**group, "params": other_params})
    return selected_groups, other_groups


class MuonWithAdamW(Optimizer):
    """Wraps torch's Muon and AdamW, which share the groups and the state of this optimizer.

    Args:
        groups: parameter groups.
        lr: learning rate of both.
        matrices: the parameters that Muon trains.
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
        self._matrices = matrices
        muon_groups, adamw_groups = split_groups(groups, matrices)
        self._muon = torch.optim.Muon(muon_groups, lr=lr, **kwargs)
        self._adamw = AdamW(adamw_groups, lr=lr, **adamw)
        super().__init__([*self._muon.param_groups, *self._adamw.param_groups], {"lr": lr})
        self._share_state()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters: matrices of the model to Muon, others to AdamW."""
        # The constructor adds groups that the two optimizers already have.
        own_groups = [*self._muon.param_groups, *self._adamw.param_groups]
        if any(param_group is group for group in own_groups):
            super().add_param_group(param_group)
            return

        params = param_group["params"]
        if isinstance(params, Tensor):
            params = [params]
        new_group = {**self.defaults, **param_group, "params": list(params)}
        split_by_optimizer = split_groups([new_group], self._matrices)
        for optimizer, (group,) in zip((self._muon, self._adamw), split_by_optimizer, strict=True):
            if group["params"]:
                optimizer.add_param_group(group)
                self.param_groups.append(group)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to copy or pickle."""
        own_state = {"_matrices": self._matrices, "_muon": self._muon, "_adamw": self._adamw}
        return {**super().__getstate__(), **own_state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore attributes, and share the loaded or copied state with both optimizers."""
        super().__setstate__(state)
        # torch adds an option that Muon's groups do not have.
        del self.defaults["differentiable"]
        self._share_state()

    def _share_state(self) -> None:
        """Assign the groups and the state of this optimizer to Muon and AdamW."""
        muon_groups: list[dict[str, Any]] = []
        adamw_groups: list[dict[str, Any]] = []
        for group in self.param_groups:
            if _MUON_OPTION in group:
                muon_groups.append(group)
            else:
                adamw_groups.append(group)
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
