"""Table of refusals: arguments and parameters of a Trainer, and the remedy that the error names."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import IterableDataset

from helpers.trainer.tiny_trainings import Tiny, points


@dataclass(frozen=True)
class Bad:
    """One combination that is refused.

    `arguments` are at fault, and named with their values by the error; `beside` are training
    arguments that are not. `unknown` says that no such arguments exist; the error then names them
    without values, which may be secrets. `parts` are parameters of the Trainer. `remedy` is part of
    the error. `accepted` says that 5.3.0 takes it and goes wrong later, or never says that it did
    something else.
    """

    arguments: dict[str, Any]
    remedy: str
    beside: dict[str, Any] = field(default_factory=dict)
    parts: Callable[[], dict[str, Any]] = dict
    until: str = "arguments"
    accepted: bool = False
    unknown: bool = False
    needs_cpu: bool = False

    def __str__(self) -> str:
        return (
            ", ".join(
                f"{name}={value!r}" for name, value in {**self.arguments, **self.beside}.items()
            )
            or self.remedy
        )


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter(points())


def _optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD(Tiny().parameters(), lr=0.1)


_BEST = {"load_best_model_at_end": True}
_BOTH = {"min_num_params": 1, "transformer_layer_cls_to_wrap": ["Block"]}
_FAR = {"until": "trainer"}
_RUN = {"until": "train"}

COMBINATIONS = [
    # Arguments that exclude each other, or need each other.
    Bad({**_BEST, "eval_strategy": "no", "save_strategy": "steps"}, "Pass the same for both"),
    Bad({**_BEST, "eval_steps": 30, "save_steps": 100}, "Make it one", {"eval_strategy": "steps"}),
    Bad(
        {**_BEST, "eval_steps": 0.1, "save_steps": 0.25},
        "both shares",
        {"eval_strategy": "steps"},
    ),
    Bad(
        {"save_strategy": "best"},
        "`args.metric_for_best_model` must be provided, such as 'loss'",
        accepted=True,
    ),
    Bad(
        {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "no"},
        "Pass eval_strategy='steps'",
    ),
    Bad(
        {
            "train_sampling_strategy": "token_budget",
            "accelerator_config": {"split_batches": True},
        },
        "Remove one of them",
        accepted=True,
    ),
    Bad({"train_sampling_strategy": "token_budget"}, "Pass both or neither", accepted=True),
    Bad({"fp16": True, "bf16": True}, "Use one", {"use_cpu": True}),
    Bad(
        {"dataloader_prefetch_factor": 2, "dataloader_num_workers": 0},
        "Pass dataloader_num_workers above 0",
    ),
    Bad(
        {"dataloader_persistent_workers": True, "dataloader_num_workers": 0},
        "Pass dataloader_num_workers above 0",
        accepted=True,
    ),
    Bad({"fsdp": "full_shard shard_grad_op"}, "Use one"),
    Bad({"fsdp_config": _BOTH}, "Use one", {"fsdp": "full_shard auto_wrap"}),
    Bad({"bf16": True}, "Pass use_cpu=True", needs_cpu=True),
    Bad({"tf32": True}, "Remove tf32", needs_cpu=True),
    # Names that do not exist.
    Bad({"eval_strategy": "epochs"}, "Did you mean 'epoch'"),
    Bad({"eval_strategy": False}, "write 'no'"),
    Bad({"save_strategy": "always"}, "Valid values: no, steps, epoch, best"),
    Bad({"optim": "adamw"}, "Did you mean 'adamw_torch'"),
    Bad({"debug": "overflow"}, "Did you mean 'underflow_overflow'"),
    Bad({"fsdp": "full_shards"}, "Did you mean 'full_shard'"),
    Bad({"ddp_backend": "nvcc"}, "Did you mean 'nccl'"),
    Bad({"report_to": "tensorbord"}, "Did you mean 'tensorboard'", accepted=True),
    Bad({"train_sampling_strategy": "group"}, "Did you mean 'group_by_length'", accepted=True),
    Bad({"include_num_input_tokens_seen": "padding"}, "Did you mean 'non_padding'", accepted=True),
    Bad({"learning_rte": 0.1}, "Did you mean 'learning_rate'", unknown=True),
    Bad({"evaluation_strategy": "steps"}, "It is called eval_strategy now", unknown=True),
    # Numbers out of range.
    Bad({"learning_rate": float("nan")}, "must be at least 0 and finite", accepted=True),
    Bad({"per_device_train_batch_size": 0}, "must be at least 1", accepted=True),
    Bad({"num_train_epochs": -1}, "or max_steps=-1 above 0", accepted=True),
    Bad({"gradient_accumulation_steps": 0}, "1 means no accumulation", accepted=True),
    Bad({"weight_decay": -0.1}, "must be at least 0", accepted=True),
    Bad({"adam_beta1": 1.0}, "below 1", accepted=True),
    Bad({"label_smoothing_factor": 1.1}, "at most 1", accepted=True),
    Bad({"warmup_steps": -1}, "Pass a number of steps, or a share"),
    Bad({"logging_steps": 0}, "above 0"),
    Bad({"logging_steps": 1.5}, "a whole number, or a share"),
    Bad({"eval_strategy": "steps"}, "above 0", {"logging_strategy": "no", "logging_steps": 0}),
    Bad({"torch_empty_cache_steps": 0}, "Remove it"),
    Bad({"seed": -1}, "NumPy takes no other", accepted=True),
    Bad({"dataloader_num_workers": -1}, "0 loads data in the training process", accepted=True),
    Bad({"ddp_timeout": 0}, "It is a number of seconds", accepted=True),
    # Values of another kind.
    Bad({"learning_rate": "1e-4"}, "without quotes", accepted=True),
    Bad({"per_device_train_batch_size": 1.5}, "pass a whole number", accepted=True),
    Bad({"logging_steps": "10"}, "pass a number, 10.0 without quotes"),
    Bad({"warmup_steps": None}, "pass a number"),
    Bad({"torch_empty_cache_steps": "1"}, "whole number above 0"),
    Bad({"label_names": "labels"}, "such as ['labels']", accepted=True),
    Bad({"use_cpu": "False"}, "pass True or False", accepted=True),
    # What cannot be read.
    Bad({"lr_scheduler_kwargs": "{'min_lr': 1}"}, "need double quotes"),
    Bad({"accelerator_config": "no/such/file.json"}, "or the path of a JSON file"),
    Bad({"fsdp_config": "no/such/file.json"}, "or the path of a JSON file", {"fsdp": "full_shard"}),
    # What does not fit the model, the data or the metrics: reported when the Trainer is created.
    Bad(
        {"eval_strategy": "steps"},
        "needs an eval_dataset",
        parts=lambda: {"eval_dataset": None},
        **_FAR,
    ),
    Bad({"max_steps": -1}, "Set max_steps", parts=lambda: {"train_dataset": Stream()}, **_FAR),
    Bad(
        {"batch_eval_metrics": True},
        "needs a compute_metrics with the argument compute_result",
        parts=lambda: {"compute_metrics": lambda prediction: {}},
        **_FAR,
    ),
    Bad({"torch_compile_backend": "nothing"}, "Choose from: aot_eager", **_FAR),
    Bad({}, "it is unclear which to train", parts=lambda: {"model_init": Tiny}, **_FAR),
    Bad({}, "pass model=", parts=lambda: {"model": None}, **_FAR),
    Bad(
        {},
        "Both optimizers and optimizer_cls_and_kwargs",
        parts=lambda: {
            "optimizers": (_optimizer(), None),
            "optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.1}),
        },
        **_FAR,
    ),
    Bad(
        {}, "It is called processing_class now", parts=lambda: {"tokenizer": "a tokenizer"}, **_FAR
    ),
    # Only a training, or the schedule that it makes, can tell.
    Bad(
        {"metric_for_best_model": "f1"},
        "Pass a compute_metrics",
        {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True},
        **_RUN,
    ),
    Bad(
        {"lr_scheduler_kwargs": {"num_cycle": 2}},
        "['num_cycles'",
        {"lr_scheduler_type": "cosine"},
        **_RUN,
    ),
    Bad(
        {"lr_scheduler_kwargs": {}},
        "Set one of them",
        {"lr_scheduler_type": "cosine_with_min_lr"},
        **_RUN,
    ),
    Bad({"optim_args": "momentum"}, "such as 'momentum=0.9", {"optim": "rmsprop"}, **_RUN),
    Bad({}, "pass train_dataset=", parts=lambda: {"train_dataset": None}, **_RUN),
    Bad({}, "nothing to train on", parts=lambda: {"train_dataset": []}, **_RUN),
    Bad({}, "remove_unused_columns=False", parts=lambda: {"train_dataset": [{"a": 1}] * 4}, **_RUN),
    Bad({"resume_from_checkpoint": True}, "to start from scratch", until="resume"),
    Bad(
        {"resume_from_checkpoint": "no/such/folder"},
        "Set resume_from_checkpoint to another",
        until="resume",
    ),
]
