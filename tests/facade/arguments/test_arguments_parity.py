"""TrainingArguments beside the reference's: the same fields, and the same values after
construction.
"""

import copy
import dataclasses
import inspect
import json
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from transformers import TrainingArguments as Reference
from transformers import debug_utils, trainer_utils, training_args
from transformers.trainer_pt_utils import AcceleratorConfig as ReferenceAcceleratorConfig

from lightrainer.facade.arguments import AcceleratorConfig, TrainingArguments, enums

FIELDS = [item.name for item in dataclasses.fields(Reference)]
# the reference's parser changes them
TYPES = {item.name: item.type for item in dataclasses.fields(Reference)}
CHOICES_ADDED_LATER = {"token_budget"}
LATER = {
    "activation_checkpointing": (bool | None, None),
    "activation_checkpointing_kwargs": (dict[str, Any] | str | None, None),
    "trackio_bucket_id": (str | None, None),
    "trackio_static_space_id": (str | Literal[False] | None, None),
    "dataloader_multiprocessing_context": (str | None, None),
    "dataloader_in_order": (bool, True),
    "ddp_static_graph": (bool | None, None),
    "record_model_losses": (bool, False),
    "eval_aggregate": (str | None, None),
    "parameter_rules": (dict[str, Any] | str | None, None),
    "max_tokens_per_batch": (int | None, None),
}
"""Fields of 5.23 that 5.3.0 does not have, and then those of lightrainer alone, with their types
and defaults.
"""
LATER_DEFAULTS = {"trackio_space_id": None}
"""Defaults of 5.23 for fields of 5.3.0."""


def theirs_of(**kwargs):
    """Make the reference's arguments with the defaults of 5.23."""
    return Reference(**{**LATER_DEFAULTS, **copy.deepcopy(kwargs)})


def plain(value):
    """A value that can be compared: members of enumerations by their text, numbers with their
    type.
    """
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (AcceleratorConfig, ReferenceAcceleratorConfig)):
        # The reference takes this key out of its object during construction.
        return {key: item for key, item in value.to_dict().items() if key != "use_configured_state"}
    return (type(value).__name__, value)


def values(args):
    return {name: plain(getattr(args, name)) for name in FIELDS}


def annotation(kind):
    """The declared type as text, without modules and in a fixed order."""
    text = (
        kind.__name__ if isinstance(kind, type) and not str(kind).startswith("list") else str(kind)
    )
    return {part.strip().rpartition("[")[2].rpartition(".")[2] for part in text.split("|")}


def test_names_and_order_are_those_of_the_reference():
    names = [item.name for item in dataclasses.fields(TrainingArguments)]
    assert names == [*FIELDS, *LATER]
    assert list(inspect.signature(TrainingArguments).parameters) == names
    assert list(inspect.signature(Reference).parameters) == FIELDS


@pytest.mark.parametrize("name", LATER)
def test_fields_of_later_versions_come_after_them(name):
    item = TrainingArguments.__dataclass_fields__[name]
    assert (item.type, item.default) == LATER[name]
    assert getattr(TrainingArguments(), name) == (
        False if name == "activation_checkpointing" else LATER[name][1]
    )


@pytest.mark.parametrize("name", FIELDS)
def test_field_is_declared_as_in_the_reference(name):
    ours, theirs = (
        TrainingArguments.__dataclass_fields__[name],
        Reference.__dataclass_fields__[name],
    )
    assert plain(ours.default) == plain(LATER_DEFAULTS.get(name, theirs.default))
    assert ours.default_factory == theirs.default_factory
    assert ours.init == theirs.init
    choices = [
        choice for choice in ours.metadata.get("choices") or [] if choice not in CHOICES_ADDED_LATER
    ]
    assert choices == list(theirs.metadata.get("choices") or [])
    if name != "parallelism_config":  # the reference names a class of accelerate
        assert annotation(ours.type) - ({"bool"} if name == "fsdp" else set()) == annotation(
            TYPES[name]
        )


def test_accelerator_config_equals_the_reference():
    ours, theirs = (
        dataclasses.fields(AcceleratorConfig),
        dataclasses.fields(ReferenceAcceleratorConfig),
    )
    assert [(f.name, f.default) for f in ours] == [(f.name, f.default) for f in theirs]


CONSTRUCTED = [
    {},
    {"output_dir": None},
    {"output_dir": Path("runs")},
    {"use_cpu": True, "fp16": True},
    {"debug": "underflow_overflow"},
    {"eval_strategy": "steps", "eval_steps": 0, "logging_steps": 7},
    {
        "eval_strategy": "steps",
        "eval_steps": 0.25,
        "save_steps": 0.5,
        "load_best_model_at_end": True,
    },
    {
        "eval_strategy": "steps",
        "eval_steps": 0.1,
        "save_steps": 0.3,
        "load_best_model_at_end": True,
    },
    {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True},
    {"eval_strategy": "epoch", "save_strategy": "best", "metric_for_best_model": "accuracy"},
    {"metric_for_best_model": "eval_loss"},
    {"metric_for_best_model": "f1", "greater_is_better": False},
    {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"},
    {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-6}},
    {
        "lr_scheduler_kwargs": (
            '{"min_lr": "0.5", "num_cycles": "2", "on": "True", "deep": {"a": "x", "b": "7"}}'
        )
    },
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": '{"use_reentrant": false}'},
    {"optim": "sgd", "optim_args": "momentum=0.9", "max_grad_norm": 0.0},
    {"optim": "galore_adamw", "optim_target_modules": ["attn", "mlp"], "optim_args": "rank=4"},
    {"logging_strategy": "epoch", "logging_steps": 0},
    {"logging_strategy": "no", "logging_steps": None},
    {"logging_steps": 10.0, "save_steps": 20.0},
    {"save_strategy": "steps", "save_steps": 0},
    {"save_total_limit": -1},
    {"num_train_epochs": -1, "max_steps": 10},
    {"warmup_steps": 0.1},
    {"warmup_ratio": 0.1, "warmup_steps": 5},
    {"include_num_input_tokens_seen": True},
    {"report_to": "tensorboard"},
    {"debug": None},
    {"accelerator_config": {"even_batches": False, "use_seedable_sampler": False}},
    {"accelerator_config": '{"even_batches": "false"}'},
    {
        "dataloader_num_workers": 2,
        "dataloader_prefetch_factor": 4,
        "dataloader_persistent_workers": True,
    },
    {"label_names": ["labels"], "include_for_metrics": ["inputs", "loss"]},
    {"learning_rate": 1, "weight_decay": 0, "adam_beta1": 0},
    {"fp16": None, "gradient_checkpointing": None, "do_train": None},
    {"log_level": "detail", "log_level_replica": "critical"},
    {
        "ddp_find_unused_parameters": False,
        "ddp_bucket_cap_mb": 10,
        "ddp_broadcast_buffers": True,
        "ddp_timeout": 60,
    },
    {"torch_compile": True},
    {"torch_compile_backend": "eager"},
    {"hub_strategy": "checkpoint", "push_to_hub": True},
    {
        "fsdp": "full_shard auto_wrap",
        "fsdp_config": {"fsdp_transformer_layer_cls_to_wrap": "Block"},
    },
    {"fsdp": "full_shard", "fsdp_config": '{"min_num_params": "20", "xla": false}'},
    {"report_to": ["wandb", "mlflow"]},
]


# from the reference, where fsdp is not set
@pytest.mark.filterwarnings("ignore:.*only when:UserWarning")
@pytest.mark.parametrize("kwargs", CONSTRUCTED, ids=str)
def test_field_values_equal_the_reference(kwargs):
    ours, theirs = TrainingArguments(**copy.deepcopy(kwargs)), theirs_of(**kwargs)
    assert values(ours) == values(theirs)
    assert ours.mixed_precision == theirs.mixed_precision


@pytest.mark.parametrize("field", ["fsdp_config", "accelerator_config"])
def test_configurations_are_read_from_files(field, tmp_path):
    content = {
        "accelerator_config": {"even_batches": False},
        "fsdp_config": {"fsdp_min_num_params": 3, "xla": False},
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content[field]))
    kwargs = {field: str(path), "fsdp": "full_shard"}
    assert values(TrainingArguments(**kwargs)) == values(theirs_of(**kwargs))


SETTERS = [
    (
        "set_training",
        {"learning_rate": 1e-4, "batch_size": 2, "num_epochs": 1, "max_steps": 3, "seed": 7},
    ),
    (
        "set_evaluate",
        {"strategy": "steps", "steps": 10, "batch_size": 3, "accumulation_steps": 2, "delay": 5},
    ),
    ("set_testing", {"batch_size": 3, "loss_only": True}),
    ("set_save", {"strategy": "best", "total_limit": 2}),
    ("set_logging", {"strategy": "epoch", "level": "info", "report_to": ["tensorboard"]}),
    ("set_optimizer", {"name": "adamw_torch", "beta1": 0.8}),
    ("set_lr_scheduler", {"name": "cosine", "warmup_steps": 0.05}),
    ("set_lr_scheduler", {"warmup_ratio": 0.05, "max_steps": 5}),
    (
        "set_push_to_hub",
        {"model_id": "me/model", "strategy": "end", "private_repo": True, "revision": "v1"},
    ),
    (
        "set_dataloader",
        {"train_batch_size": 16, "eval_batch_size": 64, "num_workers": 2, "sampler_seed": 1},
    ),
]


@pytest.mark.parametrize(("method", "kwargs"), SETTERS, ids=str)
def test_setters_equal_the_reference(method, kwargs):
    extra = {"metric_for_best_model": "f1", "eval_strategy": "epoch"}
    ours, theirs = TrainingArguments(**extra), theirs_of(**extra)
    assert getattr(ours, method)(**kwargs) is ours
    getattr(theirs, method)(**kwargs)
    assert values(ours) == values(theirs)


@pytest.mark.parametrize("kwargs", CONSTRUCTED[:20], ids=str)
def test_dicts_and_text_are_those_of_the_reference(kwargs):
    # Both write accelerator_config in their own way: the reference has lost one key of it by then.
    def without_accelerator(d):
        return {
            key: value
            for key, value in d.items()
            if key != "accelerator_config" and key not in LATER
        }

    ours, theirs = TrainingArguments(**copy.deepcopy(kwargs)), theirs_of(**kwargs)
    assert without_accelerator(ours.to_dict()) == without_accelerator(theirs.to_dict())
    assert list(ours.to_dict()) == [*theirs.to_dict(), *LATER]
    assert without_accelerator(ours.to_sanitized_dict()) == without_accelerator(
        theirs.to_sanitized_dict()
    )
    read = (json.loads(args.to_json_string()) for args in (ours, theirs))
    assert without_accelerator(next(read)) == without_accelerator(next(read))
    skipped = ("accelerator_config", *LATER)
    lines = [
        {line for line in str(a).splitlines() if not line.startswith(skipped)}
        for a in (ours, theirs)
    ]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("kwargs", CONSTRUCTED, ids=str)
def test_dicts_and_json_go_back_to_the_same_arguments(kwargs):
    args = TrainingArguments(**copy.deepcopy(kwargs))
    assert TrainingArguments(**args.to_dict()) == args
    assert TrainingArguments(**json.loads(args.to_json_string())) == args


@pytest.mark.parametrize(
    "kwargs", [{"use_cpu": True}, {"warmup_steps": 0.3}, {"warmup_steps": 7.9}]
)
def test_properties_have_the_values_they_have_in_the_reference(kwargs):
    ours, theirs = TrainingArguments(**kwargs), theirs_of(**kwargs)
    names = [name for name, value in vars(Reference).items() if isinstance(value, property)]
    assert len(names) > 10
    for name in names:
        assert plain(getattr(ours, name)) == plain(getattr(theirs, name)), name
    assert [ours.get_warmup_steps(n) for n in (7, 77)] == [
        theirs.get_warmup_steps(n) for n in (7, 77)
    ]
    assert ours.get_process_log_level() == theirs.get_process_log_level()
    assert ours._no_sync_in_gradient_accumulation == theirs._no_sync_in_gradient_accumulation


CHOICES = {**vars(debug_utils), **vars(training_args), **vars(trainer_utils)}
KINDS = {
    name for name, kind in vars(enums).items() if isinstance(kind, type) and issubclass(kind, Enum)
}
VALUES_ADDED_LATER = {"SchedulerType": ["greedy"]}


@pytest.mark.parametrize("name", sorted(KINDS - {"ExplicitEnum", "Enum"}))
def test_members_of_choices_are_those_of_the_reference(name):
    ours, reference = getattr(enums, name), CHOICES[name]
    shared = [m for m in ours if m.value not in VALUES_ADDED_LATER.get(name, ())]
    assert [(m.name, m.value, str(m), f"{m}") for m in shared] == [
        (m.name, m.value, str(m), f"{m}") for m in reference
    ]
    assert issubclass(ours, str) == issubclass(reference, str)
