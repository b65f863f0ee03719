"""Models that must read their weights themselves: those with PEFT adapters, and classes that rename on saving."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .forms import LoadReport
from .sharing import really_missing

_log = logging.getLogger(__name__)


def load_adapters(model: Any, folder: Path, adapters: list[Path]) -> LoadReport:
    """As `Trainer._load_from_checkpoint` for PEFT models, known by `load_adapter` and a list `active_adapters`.

    Args:
        model: the model; it must already have its adapters.
        folder: the checkpoint.
        adapters: the folder itself, or its subfolders, each named after its adapter.

    Raises:
        ValueError: the model has no active adapter, or is not a PEFT model.
    """
    active = getattr(model, "active_adapters", None)
    if not hasattr(model, "load_adapter") or not active or callable(active):
        raise ValueError(
            f"{folder} holds only the weights of an adapter, and {type(model).__name__} is not a PEFT model with an "
            "active adapter; wrap it with peft.get_peft_model(...) as in the run that saved the folder"
        )
    if len(active) > 1:
        _log.warning("The model has several active adapters (%s); only %s is trained on.", ", ".join(active), active[0])
    if adapters == [folder]:
        model.load_adapter(folder, active[0], is_trainable=True)
        return LoadReport()
    for adapter in adapters:
        model.load_adapter(adapter, adapter.name, is_trainable=adapter.name == active[0])
    model.set_adapter(active[0])
    return LoadReport()


def may_rename(model: Any) -> bool:
    """Whether the model's files may use other names than the module does (mixture-of-experts in `transformers` 5)."""
    return any(base.__name__ == "PreTrainedModel" for base in type(model).__mro__)


def load_through_class(model: Any, folder: Path, require: Callable[[LoadReport], None]) -> LoadReport:
    """Let the model's class read its files into a twin, and copy from that one.

    `from_pretrained` knows the names in the files, but can only make new models.

    Args:
        model: the model.
        folder: the checkpoint.
        require: raises where it is not content with a report; called before anything is copied.
    """
    import torch

    with torch.random.fork_rng(devices=[]):  # building a model draws random numbers
        twin, found = type(model).from_pretrained(
            folder, config=model.config, dtype=model.dtype, output_loading_info=True, local_files_only=True
        )
    # What the files lack was drawn at random in the twin, and must not replace the model's own values.
    absent = set(found["missing_keys"])
    missing = really_missing(model, [name for name in model.state_dict() if name in absent])
    report = LoadReport(missing, tuple(sorted(found["unexpected_keys"])))
    require(report)
    model.load_state_dict(
        {name: value for name, value in twin.state_dict().items() if name not in absent}, strict=False
    )
    return report
