"""Every training argument whose effect shows in numbers on a CPU, as trainings of a table."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from helpers.devices.pretended_cuda import trains_on_device
from helpers.parity.harness import Case
from helpers.parity.parity_datasets import (
    NoisyPoints,
    class_data,
    pad,
    point_data,
    points,
    sentence_data,
    sentences,
)
from helpers.parity.parity_models import Classifier, SometimesNotANumber, TokenModel, bert, gpt2

Extras = Callable[[ModuleType], dict[str, Any]]


def nothing(api: ModuleType) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Row:
    """One training: `arguments` are under test, `beside` are extra ones that the control has too.

    `changes` tells whether the result must differ from the control without `arguments`, or must be
    equal. With `resume`, a training that saved at this step is resumed.
    """

    arguments: dict[str, Any]
    beside: dict[str, Any] = field(default_factory=dict)
    model: Callable[[], nn.Module] = Classifier
    data: Callable[[], dict[str, Any]] = point_data
    extras: Extras = nothing
    test: Callable[[], Any] | None = None
    changes: bool = True
    resume: int | None = None

    def __str__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
        kind = self.beside.get("lr_scheduler_type")
        return f"{settings}{f' with {kind}' if kind else ''} of {self.model.__name__}"

    def case(self, **arguments: Any) -> Case:
        merged = {"logging_steps": 1, **self.beside, **arguments}
        return Case(self.model, self.data, merged, extras=self.extras, test=self.test)


def accuracy(api: ModuleType) -> dict[str, Any]:
    def compute(prediction: Any) -> dict[str, float]:
        right = np.argmax(prediction.predictions, axis=-1) == prediction.label_ids
        more = [part for part in (prediction.inputs, prediction.losses) if part is not None]
        return {
            "accuracy": float(right.mean()),
            **{f"sum_{n}": float(np.sum(part)) for n, part in enumerate(more)},
        }

    return {"compute_metrics": compute}


def batched_accuracy(api: ModuleType) -> dict[str, Any]:
    """Called on each batch, or once on all."""
    right: list[float] = []

    def compute(prediction: Any, compute_result: bool = True) -> dict[str, float]:
        predicted = torch.as_tensor(prediction.predictions).argmax(dim=-1)
        right.append(float((predicted == torch.as_tensor(prediction.label_ids)).float().mean()))
        if not compute_result:
            return {}
        result = {"accuracy": sum(right) / len(right), "calls": len(right)}
        right.clear()
        return result

    return {"compute_metrics": compute}


def stopping_after_five(api: ModuleType) -> dict[str, Any]:
    """A callback that counts steps, takes the count into checkpoints, and ends the training at
    the fifth.
    """

    class Count(
        api.TrainerCallback,
        api.trainer_callback.ExportableState if reference(api) else api.ExportableState,
    ):
        def __init__(self, steps: int = 0):
            self.steps = steps

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.steps += 1
            control.should_training_stop |= self.steps >= 5

        def state(self) -> dict[str, Any]:
            return {"args": {"steps": self.steps}, "attributes": {}}

    return {"callbacks": [Count()]}


def reference(api: ModuleType) -> bool:
    return api.__name__ == "transformers"


class WithMore(Classifier):
    """Also takes a column that its signature does not name."""

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None, **more: torch.Tensor
    ) -> Any:
        return super().forward(x + sum(more.values()), labels)


class Cached(Classifier):
    """Its numbers depend on the cache that its configuration asks for."""

    class Config:
        use_cache: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.config = self.Config()

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return super().logits(x if self.config.use_cache else x * 1.5)


def points_with_more() -> dict[str, Any]:
    sets = point_data()
    return {
        name: [{**item, "noise": item["x"].flip(0)} for item in items]
        for name, items in sets.items()
    }


def noisy_data() -> dict[str, Any]:
    """Noise is drawn in the workers, whose seeds come from the main process."""
    return {"train_dataset": NoisyPoints(14), "eval_dataset": points(6, seed=11)}


def table_of_sentences() -> dict[str, Any]:
    """With the lengths in a column that is not called `length`."""
    import datasets

    def table(count: int, seed: int) -> Any:
        rows = [
            {key: value.tolist() for key, value in item.items()} for item in sentences(count, seed)
        ]
        return datasets.Dataset.from_list([{**row, "size": len(row["labels"]) % 5} for row in rows])

    def collate(rows: list[dict[str, Any]]) -> Any:
        return pad(
            [{key: torch.tensor(row[key]) for key in ("input_ids", "labels")} for row in rows]
        )

    return {"train_dataset": table(22, 2), "eval_dataset": table(10, 12), "data_collator": collate}


def test_points() -> Any:
    return points(7, seed=21)


def test_sentences() -> Any:
    return sentences(7, seed=22)


EPOCHS, STEPS = {"eval_strategy": "epoch"}, {"eval_strategy": "steps"}
SAVED = {"save_strategy": "steps", "save_steps": 2}
BEST = {**STEPS, **SAVED, "eval_steps": 2, "learning_rate": 0.2, "num_train_epochs": 3}
ON_TOKENS = {"model": TokenModel, "data": sentence_data}
ON_GPT2 = {"model": gpt2, "data": sentence_data}
PREDICTED = {"test": test_points}
REENTERED = {
    "gradient_checkpointing": True,
    "gradient_checkpointing_kwargs": {"use_reentrant": False},
}
BEST_EPOCH = {**EPOCHS, "save_strategy": "epoch", "load_best_model_at_end": True}


def optimizer(name: str, args: str | None = None, **more: Any) -> Row:
    return Row(
        {"optim": name, **({"optim_args": args} if args else {}), **more},
        {"gradient_accumulation_steps": 2},
    )


OPTIMIZATION = [
    Row({"learning_rate": 0.05}),
    Row({"num_train_epochs": 1.5}),
    Row({"max_steps": 7}),
    Row({"per_device_train_batch_size": 5}),
    Row({"gradient_accumulation_steps": 3}, **ON_GPT2),
    # All schedules, with warm-up, are in test_checkpoint_exchange.py.
    Row({"lr_scheduler_type": "linear"}, changes=False),
    Row({"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 1.0}}),
    Row(
        {
            "lr_scheduler_type": "reduce_lr_on_plateau",
            "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5},
        },
        {**STEPS, "eval_steps": 2, "learning_rate": 0.1, "metric_for_best_model": "loss"},
    ),
    Row({"warmup_steps": 3}),
    Row({"warmup_steps": 0.3}, {"lr_scheduler_type": "constant_with_warmup"}),
    Row({"warmup_ratio": 0.2}),
    optimizer("adamw_torch", weight_decay=0.1),
    optimizer("adamw_torch_fused", weight_decay=0.1),
    optimizer("sgd", "momentum=0.9,nesterov=true", weight_decay=0.1),
    Row({"adam_beta1": 0.8}, **ON_TOKENS),
    Row({"adam_beta2": 0.95}, **ON_TOKENS),
    Row({"adam_epsilon": 1e-5}, **ON_TOKENS),
    Row({"max_grad_norm": 0.05}, {"optim": "sgd", "gradient_accumulation_steps": 2}, **ON_TOKENS),
    Row({"label_smoothing_factor": 0.1}, EPOCHS, model=bert, data=class_data),
    Row({"label_smoothing_factor": 0.2}, EPOCHS, **ON_GPT2),
    Row({"average_tokens_across_devices": False}, changes=False, **ON_TOKENS),
]

EXECUTION = [
    Row({"bf16": True}, {"gradient_accumulation_steps": 2, **EPOCHS}, **PREDICTED),
    Row({"bf16_full_eval": True}, EPOCHS, test=test_sentences, **ON_TOKENS),
    Row({"fp16_full_eval": True}, EPOCHS, test=test_sentences, **ON_TOKENS),
    Row(
        {"gradient_checkpointing": True},
        {"gradient_accumulation_steps": 2},
        changes=False,
        **ON_GPT2,
    ),
    Row(
        {"gradient_checkpointing_kwargs": {"use_reentrant": True}},
        REENTERED,
        changes=False,
        **ON_GPT2,
    ),
    Row({"torch_compile": True, "torch_compile_backend": "eager"}, changes=False),
    Row({"torch_compile_backend": "aot_eager"}, BEST_EPOCH, changes=False),
    Row({"use_cache": True}, model=Cached),
    Row({"neftune_noise_alpha": 5.0}, {"gradient_accumulation_steps": 2, **EPOCHS}, **ON_GPT2),
    Row({"torch_empty_cache_steps": 2}, changes=False),
    Row({"debug": "underflow_overflow"}, EPOCHS, changes=False),
    Row({"auto_find_batch_size": True}, changes=False),
    Row({"seed": 3}),
    Row({"data_seed": 5}),
    Row({"full_determinism": True}, changes=False),
    Row({"use_cpu": True}, changes=trains_on_device()),  # dropout on a device has its own generator
]

LOGGING = [
    Row({"logging_strategy": "epoch"}, {"gradient_accumulation_steps": 2}),
    Row({"logging_strategy": "no"}),
    Row({"logging_steps": 3}, {"num_train_epochs": 3}),
    Row({"logging_first_step": True}, {"logging_steps": 3}),
    Row({"logging_nan_inf_filter": False}, {"logging_steps": 2}, model=SometimesNotANumber),
    Row(
        {"include_num_input_tokens_seen": "all"},
        {"gradient_accumulation_steps": 2, **EPOCHS},
        **ON_GPT2,
    ),
    Row(
        {"include_num_input_tokens_seen": "non_padding"},
        {"gradient_accumulation_steps": 2},
        **ON_TOKENS,
    ),
]

EVALUATION = [
    Row({"eval_strategy": "epoch"}, {"gradient_accumulation_steps": 3}, **ON_GPT2),
    Row({"eval_steps": 2}, {**STEPS, "gradient_accumulation_steps": 2}, **ON_GPT2),
    Row({"eval_steps": 0.2}, {**STEPS, "num_train_epochs": 3}, **ON_GPT2),
    Row({"eval_delay": 5}, {**STEPS, "eval_steps": 2}, **ON_GPT2),
    Row({"eval_on_start": True}, {**STEPS, "eval_steps": 5}, **ON_GPT2),
    Row({"per_device_eval_batch_size": 3}, EPOCHS, **PREDICTED),
    Row({"prediction_loss_only": True}, EPOCHS, extras=accuracy, **PREDICTED),
    Row({"eval_do_concat_batches": False}, **PREDICTED),
    Row(
        {"eval_accumulation_steps": 1},
        EPOCHS,
        model=bert,
        data=class_data,
        extras=accuracy,
        changes=False,
    ),
    Row({"eval_use_gather_object": True}, EPOCHS, extras=accuracy, changes=False, **PREDICTED),
    Row(
        {"include_for_metrics": ["inputs", "loss"]},
        EPOCHS,
        model=bert,
        data=class_data,
        extras=accuracy,
    ),
    Row({"batch_eval_metrics": True}, {**STEPS, "eval_steps": 4}, extras=batched_accuracy),
    Row({"label_names": ["absent"]}, **PREDICTED),
]

SAVING = [
    Row({"save_strategy": "epoch"}),
    Row(
        {"save_strategy": "best"},
        {**STEPS, "eval_steps": 1, "metric_for_best_model": "loss", "learning_rate": 0.2},
    ),
    Row({"save_steps": 3}, {"save_strategy": "steps"}),
    Row({"save_steps": 0.25}, {"save_strategy": "steps"}),
    Row({"save_total_limit": 2}, SAVED),
    Row({"save_only_model": True}, SAVED),
    Row({"load_best_model_at_end": True}, BEST),
    Row({"metric_for_best_model": "accuracy"}, BEST, extras=accuracy),
    Row({"greater_is_better": True}, {**BEST, "metric_for_best_model": "loss"}),
    Row({"save_only_model": True}, {"gradient_accumulation_steps": 2}, resume=2),
    Row({"ignore_data_skip": True}, {"gradient_accumulation_steps": 2}, resume=2),
    Row({"restore_callback_states_from_checkpoint": True}, extras=stopping_after_five, resume=2),
]

DATA = [
    Row({"train_sampling_strategy": "random"}, EPOCHS, changes=False, **ON_TOKENS),
    Row({"train_sampling_strategy": "sequential"}, EPOCHS, **ON_TOKENS),
    Row(
        {"train_sampling_strategy": "group_by_length"},
        {"gradient_accumulation_steps": 2, **EPOCHS},
        **ON_TOKENS,
    ),
    Row(
        {"length_column_name": "size"},
        {"train_sampling_strategy": "group_by_length", "remove_unused_columns": False},
        model=TokenModel,
        data=table_of_sentences,
    ),
    Row({"dataloader_drop_last": True}, {"gradient_accumulation_steps": 2, **EPOCHS}, **PREDICTED),
    Row({"remove_unused_columns": False}, EPOCHS, model=WithMore, data=points_with_more),
    Row({"accelerator_config": {"use_seedable_sampler": False}}),
]

WORKERS = [
    Row({"dataloader_num_workers": 2}, EPOCHS, data=noisy_data),
    Row(
        {"dataloader_persistent_workers": True},
        {"dataloader_num_workers": 2, **EPOCHS},
        data=noisy_data,
    ),
    Row(
        {"dataloader_prefetch_factor": 3},
        {"dataloader_num_workers": 1},
        data=noisy_data,
        changes=False,
    ),
]

ROWS = [*OPTIMIZATION, *EXECUTION, *LOGGING, *EVALUATION, *SAVING, *DATA, *WORKERS]
