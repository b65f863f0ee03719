"""Functions that use private names of torch, each listed in docs/develop/private_names.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils import _pytree


def default_store() -> Any:
    """Return the store of the default process group; None for MPI, which has no store."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def mark_as_stepped(optimizer: Any, step: Callable[..., Any]) -> None:
    """Set a `step` that torch's schedules do not wrap or wait for.

    Otherwise they would warn about the order of steps.
    """
    vars(step)["_wrapped_by_lr_sched"] = True
    optimizer.step = step.__get__(optimizer)
    optimizer._opt_called = True


def register_output(kind: type, parts: Callable[[Any], Any], joined: Callable[..., Any]) -> None:
    """Register a class as a pytree node.

    DDP uses pytrees to find unused parameters.
    """
    name = f"{kind.__module__}.{kind.__qualname__}"
    _pytree.register_pytree_node(kind, parts, joined, serialized_type_name=name)


def dataset_fetcher(loader: Any) -> Any:
    """Return the fetcher that reads the samples of a batch in torch's loaders. Libraries replace
    its class.

    Args:
        loader: a `DataLoader` of a map-style dataset.
    """
    from torch.utils.data.dataloader import _DatasetKind

    return _DatasetKind.create_fetcher(
        _DatasetKind.Map,
        loader.dataset,
        loader.batch_sampler is not None,
        loader.collate_fn,
        loader.drop_last,
    )


def renames_what_it_loads(model: object) -> bool:
    """Return whether a model renames weights when it loads them."""
    if not isinstance(model, nn.Module):
        return False
    if type(model).load_state_dict is not nn.Module.load_state_dict:
        return True
    for module in model.modules():
        is_plain = type(module)._load_from_state_dict is nn.Module._load_from_state_dict
        if not is_plain or module._load_state_dict_pre_hooks:
            return True
    return False
