"""Check that all ranks train with the same settings, model and data."""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from ...lightning_modules.data.lengths import has_length
from ...lightning_modules.data.uneven_inputs import may_be_uneven
from ...lightning_modules.distributed.health.consistency import require_same

if TYPE_CHECKING:
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
"""Arguments that concern one rank alone, or that only one rank reads."""

_REMEDY = "Start all of them with the same script, arguments and data, otherwise they deadlock."
_KINDS = (bool, int, float, str, type(None))


def require_same_training(trainer: Trainer, length: Any, checkpoint: str | None) -> None:
    """Check that all ranks are about to train with the same arguments, model, data and steps.

    Args:
        trainer: of this rank.
        length: the `TrainingLength` of this rank.
        checkpoint: the folder that this rank resumes from.

    Raises:
        ValueError: they differ; names the differences and the ranks.
    """
    if trainer.args.world_size == 1:
        return

    start = "the start"
    if checkpoint is not None:
        start = os.path.basename(os.path.normpath(checkpoint))
    data = {"train_dataset": trainer.train_dataset, "eval_dataset": trainer.eval_dataset}
    _require_same(trainer, data, {"begins with": start, **_steps_of_uneven_batches(trainer, length)})


def require_same_evaluation(trainer: Trainer, loader: Any) -> None:
    """As `require_same_training`, for the model and the data of an evaluation."""
    if trainer.args.world_size == 1:
        return

    facts = {}
    if has_length(loader) and not may_be_uneven(loader):
        facts["batches of the loader"] = len(loader)
    _require_same(trainer, {"the dataset": getattr(loader, "whole_dataset", loader)}, facts)


def _require_same(trainer: Trainer, data: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    known = {**_arguments(trainer.args), **_facts_of_model(trainer), **_lengths(data)}
    known |= {name: str(value) for name, value in facts.items()}
    require_same(known | _versions(), _REMEDY)


@functools.cache
def _versions() -> dict[str, str]:
    """Return the versions of lightrainer, torch and lightning; cached, since reading metadata takes milliseconds."""
    return {f"version of {name}": version(name) for name in ("lightrainer", "torch", "lightning")}


def _steps_of_uneven_batches(trainer: Trainer, length: Any) -> dict[str, int]:
    """Return the numbers of steps, which may differ between ranks with `even_batches=False` only.

    Where ranks wait for each other in each micro-batch, and not only in each step, those of an epoch are returned too.
    """
    args = trainer.args
    config: Any = args.accelerator_config
    if config.even_batches:
        return {}

    remedy = "leave even_batches=False out, or set"
    steps = {f"optimizer steps ({remedy} max_steps or dataloader_drop_last=True)": length.max_steps}
    if "epoch" in (args.logging_strategy, args.eval_strategy, args.save_strategy):
        steps["optimizer steps in an epoch, at whose end something is to be done"] = length.num_update_steps_per_epoch

    meets_each_time = trainer.plan.strategy.distributes or trainer.accelerator.sync_each_batch
    if meets_each_time and args.gradient_accumulation_steps > 1:
        steps[f"batches in an epoch ({remedy} dataloader_drop_last=True)"] = length.steps_in_epoch
    return steps


def _facts_of_model(trainer: Trainer) -> dict[str, str]:
    """Return name, shape and dtype of parameters and buffers; an empty dict if ranks hold different parts."""
    model = trainer.model
    if trainer.plan.strategy.distributes and trainer.model_wrapped is not model:
        return {}
    kinds = {"parameter": model.named_parameters(), "buffer": model.named_buffers()}
    found = {"model": type(model).__name__}
    for kind, named in kinds.items():
        for name, one in named:
            frozen = ", frozen" if kind == "parameter" and not one.requires_grad else ""
            found[f"{kind} {name}"] = f"{_shape(one)} of {str(one.dtype).removeprefix('torch.')}{frozen}"
    return found


def _shape(tensor: Any) -> str:
    try:
        return " x ".join(map(str, tensor.shape)) or "a number"
    except RuntimeError:  # lazy parameters have none before the first forward pass
        return "unknown"


def _arguments(args: Any) -> dict[str, str]:
    """Return the documented arguments as text; fields added by a subclass are not compared."""
    package = __name__.partition(".")[0]
    kind = next((one for one in type(args).__mro__ if one.__module__.partition(".")[0] == package), type(args))
    names = [field.name for field in dataclasses.fields(kind) if field.name not in _MAY_DIFFER]
    return {name: _text(getattr(args, name)) for name in names if hasattr(args, name)}


def _text(value: Any) -> str:
    """Format a value equally in each process: without addresses, with sets sorted."""
    if isinstance(value, enum.Enum):
        return repr(value.value)
    if isinstance(value, _KINDS):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{key!r}: {_text(one)}" for key, one in value.items())) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(_text, value))) + "}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _text({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if callable(as_dict := getattr(value, "to_dict", None)):
        return _text(as_dict())
    return re.sub(r"0x[0-9a-fA-F]+", "", repr(value))


def _lengths(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the lengths of datasets and loaders."""
    found: dict[str, str] = {}
    for name, one in data.items():
        if isinstance(one, Mapping):
            found |= _lengths({f"{name}[{key!r}]": part for key, part in one.items()})
        elif one is not None:
            found[f"length of {name}"] = str(len(one)) if has_length(one) else "unknown"
    return found
