"""Check that all ranks train with the same settings, model and data."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy

from ...lightning_modules.common.nested import map_nested
from ...lightning_modules.data.lengths import has_length
from ...lightning_modules.data.uneven_inputs import may_be_uneven
from ...lightning_modules.distributed.health.consistency import require_same

if TYPE_CHECKING:
    from torch import nn

    from .. import Trainer

_MAY_DIFFER = {
    "dataloader_in_order",
    "dataloader_multiprocessing_context",
    "dataloader_num_workers",
    "dataloader_persistent_workers",
    "dataloader_pin_memory",
    "dataloader_prefetch_factor",
    "ddp_timeout",
    "debug",
    "disable_tqdm",
    "do_eval",
    "do_predict",
    "do_train",
    "hub_always_push",
    "hub_model_id",
    "hub_private_repo",
    "hub_revision",
    "hub_strategy",
    "hub_token",
    "local_rank",
    "log_level",
    "log_level_replica",
    "log_on_each_node",
    "logging_dir",
    "output_dir",
    "project",
    "push_to_hub",
    "report_to",
    "resume_from_checkpoint",
    "run_name",
    "skip_memory_metrics",
    "trackio_bucket_id",
    "trackio_space_id",
    "trackio_static_space_id",
}
"""Arguments that may differ between ranks, or that only one rank reads."""

_REMEDY = "Start all of them with the same script, arguments and data; otherwise they deadlock."


def require_same_training(
    trainer: Trainer, length: object, checkpoint: str | None, *, distributes_model: bool
) -> None:
    """Check that all ranks are about to train with the same arguments, model, data and steps.

    Args:
        trainer: the trainer of this rank.
        length: the `TrainingLength` of this rank.
        checkpoint: the folder that this rank resumes from.
        distributes_model: the strategy shards or wraps the model when the run begins.

    Raises:
        ValueError: they differ; names the differences and the ranks.
    """
    if trainer.args.world_size == 1:
        return

    start = "the start"
    if checkpoint is not None:
        start = os.path.basename(os.path.normpath(checkpoint))
    data = {"train_dataset": trainer.train_dataset, "eval_dataset": trainer.eval_dataset}
    facts: dict[str, str | int] = {"begins with": start}
    facts |= _steps_of_uneven_batches(trainer, length, distributes_model=distributes_model)
    _require_same(trainer, data, facts, distributes_model=distributes_model)


def require_same_evaluation(trainer: Trainer, loader: Any, *, distributes_model: bool) -> None:
    """Check that all ranks are about to evaluate with the same arguments, model and data."""
    if trainer.args.world_size == 1:
        return

    # Loaders without a fixed length may end at different batches.
    facts: dict[str, int] = {}
    if has_length(loader) and not may_be_uneven(loader):
        facts["batches of the loader"] = len(loader)
    dataset = getattr(loader, "full_dataset", loader)
    _require_same(trainer, {"the dataset": dataset}, facts, distributes_model=distributes_model)


def _require_same(
    trainer: Trainer,
    data: Mapping[str, object],
    facts: Mapping[str, str | int],
    *,
    distributes_model: bool,
) -> None:
    """Compare arguments, model, data and other facts of all ranks.

    Args:
        trainer: the trainer of this rank.
        data: datasets and loaders by name, of which the lengths are compared.
        facts: further values by name.
        distributes_model: see `require_same_training`.
    """
    settings = _arguments(trainer)
    # Once it is distributed, ranks hold different parts of the model.
    if not distributes_model or trainer.model_wrapped is trainer.model:
        settings |= _facts_of_model(trainer.model)
    settings |= _lengths(data)
    for name, value in facts.items():
        settings[name] = str(value)
    settings |= _versions()
    require_same(settings, _REMEDY)


# Cached, because reading package metadata takes milliseconds.
@functools.cache
def _versions() -> dict[str, str]:
    """Return the versions of lightrainer, torch and lightning."""
    return {f"version of {name}": version(name) for name in ("lightrainer", "torch", "lightning")}


def _steps_of_uneven_batches(
    trainer: Trainer, length: Any, *, distributes_model: bool
) -> dict[str, int]:
    """Return the numbers of steps; they differ between ranks only with `even_batches=False`.

    If ranks wait for each other in each micro-batch, and not only in each step, the number of
    micro-batches is returned too.
    """
    args = trainer.args
    config: Any = args.accelerator_config
    if config.even_batches:
        return {}

    remedy = "remove even_batches=False, or set"
    steps = {f"optimizer steps ({remedy} max_steps or dataloader_drop_last=True)": length.max_steps}

    # Logs, evaluations and saves at the end of an epoch are collective.
    if "epoch" in (args.logging_strategy, args.eval_strategy, args.save_strategy):
        name = "optimizer steps in an epoch, since logging_, eval_ or save_strategy is 'epoch'"
        steps[name] = length.num_update_steps_per_epoch

    # Each micro-batch is collective.
    meets_each_time = distributes_model or trainer.accelerator.sync_each_batch
    if meets_each_time and args.gradient_accumulation_steps > 1:
        steps[f"batches in an epoch ({remedy} dataloader_drop_last=True)"] = length.steps_in_epoch
    return steps


def _facts_of_model(model: nn.Module) -> dict[str, str]:
    """Return name, shape and dtype of parameters and buffers."""
    facts = {"model": type(model).__name__}
    for name, parameter in model.named_parameters():
        shape_and_dtype = _shape_and_dtype(parameter)
        if not parameter.requires_grad:
            shape_and_dtype += ", frozen"
        facts[f"parameter {name}"] = shape_and_dtype
    for name, buffer in model.named_buffers():
        facts[f"buffer {name}"] = _shape_and_dtype(buffer)
    return facts


def _shape_and_dtype(tensor: torch.Tensor) -> str:
    """Return a text such as "2 x 3 of float32"."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    # Lazy parameters have no shape before the first forward pass.
    if is_lazy(tensor):
        return f"unknown of {dtype}"
    shape = " x ".join(map(str, tensor.shape)) or "a number"
    return f"{shape} of {dtype}"


def _arguments(trainer: Trainer) -> dict[str, str]:
    """Return the documented arguments as text; fields added by a subclass are not compared."""
    args = trainer.args
    package = __name__.partition(".")[0]
    documented_class = next(
        base for base in type(args).__mro__ if base.__module__.partition(".")[0] == package
    )
    names = {field.name for field in dataclasses.fields(documented_class)} - _MAY_DIFFER
    return {name: _text(value) for name, value in args.to_dict().items() if name in names}


def _text(value: object) -> str:
    """Format a value identically on all ranks: sets sorted, without addresses of objects."""
    text = repr(map_nested(_sorted_if_set, value))
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _sorted_if_set(value: object) -> object:
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    return value


def _lengths(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the lengths of datasets and loaders."""
    lengths: dict[str, str] = {}
    for name, dataset in data.items():
        if dataset is None:
            continue
        if isinstance(dataset, Mapping):
            named_datasets = {f"{name}[{key!r}]": part for key, part in dataset.items()}
            lengths |= _lengths(named_datasets)
        elif has_length(dataset):
            lengths[f"length of {name}"] = str(len(dataset))
        else:
            lengths[f"length of {name}"] = "unknown"
    return lengths
