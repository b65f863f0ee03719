"""Short trainings that are the same for any number of processes: what scripts that compare
strategies share.
"""

import json
import os
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lightrainer

ON_CPU = os.environ.get("DEVICE", "cpu") == "cpu"
NUMBERS_OF = {"losses": "loss", "norms": "grad_norm", "eval_losses": "eval_loss"}  # in the log


class StopAt(lightrainer.TrainerCallback):
    """Writes a checkpoint in the middle, while the training continues to the next step, which
    is the last one.
    """

    def __init__(self, step: int | None):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if self.step is not None:
            control.should_save = state.global_step == self.step
            control.should_training_stop = state.global_step > self.step


def samples(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(11, (count, 6), generator=generator)
    return [
        {"ids": row[:-1], "labels": row[1:], "index": torch.tensor(i)} for i, row in enumerate(rows)
    ]


def short_arguments(folder: Path, *, shares: int, **options: Any) -> lightrainer.TrainingArguments:
    """Batches of 4 over all processes that have separate samples, two of them a step; see
    `short_trainer`.
    """
    defaults = {
        "per_device_train_batch_size": 4 // shares,
        "per_device_eval_batch_size": 4,
        "weight_decay": 0.1,
    }
    defaults |= {
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 0.5,
        "learning_rate": 3e-2,
        "logging_steps": 1,
    }
    defaults |= {
        "eval_strategy": "epoch",
        "save_total_limit": 2,
        "report_to": "none",
        "disable_tqdm": True,
    }
    return lightrainer.TrainingArguments(
        str(folder), use_cpu=ON_CPU, ddp_timeout=60, **{**defaults, **options}
    )


def short_trainer(
    folder: Path,
    model: nn.Module,
    data: tuple[Any, Any],
    *,
    shares: int,
    stop: int | None,
    **options: Any,
) -> lightrainer.Trainer:
    """16 samples in batches of 4, two of them a step, two steps a pass.

    Args:
        folder: the output folder.
        model: to train.
        data: to train on, and to evaluate with.
        shares: the number of processes that have separate samples.
        stop: the step of its only checkpoint; it stops after the next one.
        options: further training arguments, and `preprocess_logits_for_metrics`.
    """
    preprocess = options.pop("preprocess_logits_for_metrics", None)
    saving = {"save_strategy": "no" if stop else "epoch", "load_best_model_at_end": stop is None}
    arguments = short_arguments(folder, shares=shares, **{**saving, **options})
    settings = {
        "model": model,
        "args": arguments,
        "train_dataset": data[0],
        "eval_dataset": data[1],
    }
    settings |= {"callbacks": [StopAt(stop)], "preprocess_logits_for_metrics": preprocess}
    return lightrainer.Trainer(**settings)


def seen(
    trainer: lightrainer.Trainer, folder: Path, predicted: int | None = None
) -> dict[str, Any]:
    """Evaluate, predict and save the model again; return what a rank saw of a finished training.

    Args:
        trainer: that trained.
        folder: the model is saved in its `saved`.
        predicted: the number of samples to predict for, all if None.
    """
    history = trainer.state.log_history
    metrics = trainer.evaluate()
    predictions: Any = trainer.predict(trainer.eval_dataset[:predicted]).predictions
    if trainer.is_fsdp_enabled:  # the last lines of many scripts
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    trainer.save_model(str(folder / "saved"))
    zero = trainer.is_world_process_zero()
    files = sorted(path.name for path in (folder / "saved").iterdir()) if zero else None
    return {
        "strategy": trainer.plan.strategy.name,
        **{
            name: [entry[key] for entry in history if key in entry]
            for name, key in NUMBERS_OF.items()
        },
        "last_eval_loss": metrics["eval_loss"],
        "predicted": [int(number) for number in predictions],
        "best": trainer.state.best_global_step,
        "local_numel": sum(
            local_shard(parameter).numel() for parameter in trainer.model_wrapped.parameters()
        ),
        "saved": files,
    }


def train_cases(
    folder: Path,
    cases: list[str],
    trainer_of: Callable[..., lightrainer.Trainer],
    seen: Callable[[lightrainer.Trainer, Path], dict[str, Any]],
    *,
    resumed: Collection[str] = (),
    evaluates: bool = True,
) -> None:
    """Train each case, alone or as a rank, and write what was seen to `CASE-single.json` or
    `CASE-rank<rank>.json`.

    Args:
        folder: of the files, and of the trainings: `single/CASE` or `shared/CASE`.
        cases: their names.
        trainer_of: called with a folder, the case, and `stop=` or `seed=` where a training is cut
            and resumed.
        seen: returns what a trainer that has trained, in this folder, has seen.
        resumed: cases that ranks also cut in the middle of a pass and resume in a model with other
            initial weights.
        evaluates: evaluate first, which shards the model, and must leave it fit for training.
    """
    warnings.filterwarnings("ignore")
    alone = "WORLD_SIZE" not in os.environ
    for case in cases:
        place = folder / ("single" if alone else "shared") / case
        record = seen(_trained(trainer_of(place, case), evaluates), place)
        if case in resumed and not alone:
            _trained(trainer_of(place / "cut", case, stop=3), evaluates)
            continued = trainer_of(place / "cut", case, seed=99)
            continued.train(resume_from_checkpoint=True)
            record["resumed"] = seen(continued, place / "cut")
        write(folder, case, record)


def _trained(trainer: lightrainer.Trainer, evaluates: bool) -> lightrainer.Trainer:
    if evaluates:
        trainer.evaluate()
    trainer.train()
    return trainer


def write(folder: Path, case: str, found: dict[str, Any]) -> None:
    """Write what this process saw of a case."""
    place = f"rank{os.environ['RANK']}" if "RANK" in os.environ else "single"
    (folder / f"{case}-{place}.json").write_text(json.dumps(found))


def local_shard(parameter: Any) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter
