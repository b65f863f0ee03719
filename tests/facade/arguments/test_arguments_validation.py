"""Refusals of training arguments beyond those in contract/refusals.py: each names the argument
and its value.
"""

import ast
import dataclasses
import inspect
import re

import pytest
import torch

import lightrainer
from lightrainer.callbacks.loggers.availability import TRACKERS
from lightrainer.facade.arguments import (
    Seq2SeqTrainingArguments,
    TrainingArguments,
    hardware,
    rules,
    training_arguments,
)
from lightrainer.facade.arguments.enums import OptimizerNames, SchedulerType
from lightrainer.facade.arguments.rules import RULES, ReadableArguments, Rule


def test_lightning_can_read_how_tf32_is_set():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        for enable, precision in ((True, "high"), (False, "highest")):
            hardware.set_tf32(enable)
            assert torch.get_float32_matmul_precision() == precision
            assert (
                torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is enable
            )
    finally:
        hardware.set_tf32(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({}, None),
        ({"tf32": False}, False),
        ({"torch_compile": True}, True),
        ({"torch_compile": True, "bf16": True}, True),
        ({"torch_compile": True, "fp16": True}, None),
        ({"torch_compile": True, "tf32": False}, False),
    ],
)
def test_compiled_models_use_tf32_unless_told_otherwise(tmp_path, monkeypatch, given, chosen):
    """In both libraries, on a machine whose GPU has it."""
    transformers = pytest.importorskip("transformers")
    values = []
    for module in (hardware, training_arguments):
        monkeypatch.setattr(module, "supports_tf32", lambda: True)
    monkeypatch.setattr(training_arguments, "set_tf32", values.append)
    monkeypatch.setattr(transformers.training_args, "is_torch_tf32_available", lambda: True)
    monkeypatch.setattr(transformers.training_args, "enable_tf32", values.append)
    for api in (lightrainer, transformers):
        values.clear()
        api.TrainingArguments(str(tmp_path), use_cpu=True, **given)
        assert (values or [None])[-1] is chosen


WRONG_TYPES = {
    "learning_rate": [None],
    "seed": [None],
    "include_for_metrics": [3],
    "lr_scheduler_kwargs": ["min_lr=1"],
}
WRONG_TYPES |= {
    "output_dir": [3],
    "activation_checkpointing": ["no"],
    "activation_checkpointing_kwargs": ["offload"],
}
WRONG_TYPES |= {"trackio_static_space_id": [True]}
# Python counts True as the number 1.
WRONG_TYPES |= {name: [True] for name in ("max_steps", "warmup_steps", "save_total_limit")}
WRONG_TYPES |= {"max_grad_norm": [False]}
WRONG_VALUES = [
    ({"torch_empty_cache_steps": True}, "torch_empty_cache_steps=True"),
    ({"deepspeed": {"zero_optimization": {"stage": True}}}, "stage=True must be 0, 1, 2 or 3"),
    ({"adam_epsilon": -1}, "adam_epsilon=-1"),
    (
        {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 0},
        "dataloader_prefetch_factor=0",
    ),
    ({"dataloader_multiprocessing_context": "spawn"}, "dataloader_num_workers=0"),
    (
        {"dataloader_multiprocessing_context": "spwan", "dataloader_num_workers": 1},
        "Did you mean 'spawn'",
    ),
    ({"logging_steps": None}, "logging_steps=None"),
    ({"report_to": ["tensorboard", "none"]}, "report_to='none'"),
    ({"activation_checkpointing_kwargs": {"every_n_layers": 0}}, "every_n_layers=0"),
    ({"activation_checkpointing_kwargs": {"offload": "disk"}}, "offload='disk'"),
    (
        {"ddp_static_graph": True, "auto_find_batch_size": True},
        "ddp_static_graph=True and auto_find_batch_size=True",
    ),
]


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, row in WRONG_TYPES.items() for value in row]
)
def test_validation_names_a_wrong_type(name, value):
    with pytest.raises(
        TypeError, match=f"(?m)^{name}={value!r} is an? {type(value).__name__}; pass "
    ):
        TrainingArguments(**{name: value})


@pytest.mark.parametrize(("kwargs", "message"), WRONG_VALUES, ids=str)
def test_validation_names_a_wrong_value(kwargs, message):
    with pytest.raises(ValueError, match=message):
        TrainingArguments(use_cpu=True, **kwargs)


def test_unknown_names_are_reported_before_bad_values_each_kind_in_one_error():
    with pytest.raises(TypeError) as error:
        TrainingArguments(learning_rte=1, no_such_name=2, seed=-1)
    assert "learning_rte" in str(error.value)
    assert "no_such_name" in str(error.value)
    assert "seed" not in str(error.value)
    with pytest.raises(ValueError, match="seed=-1") as error:
        TrainingArguments(seed=-1, max_steps=True)
    assert "max_steps=True" in str(error.value)


@pytest.mark.parametrize("cls", [TrainingArguments, Seq2SeqTrainingArguments])
def test_docstring_lists_all_arguments_with_their_help(cls):
    lines = inspect.getdoc(cls).partition("Args:\n")[2].splitlines()
    for field in dataclasses.fields(cls):
        assert f"    {field.name}: {field.metadata['help']}" in lines
    assert len(cls.__doc__) < 16_000  # it is made at each import


def test_numbers_of_numpy_are_numbers():
    import numpy as np

    args = TrainingArguments(
        learning_rate=np.float32(0.5), seed=np.int64(3), max_steps=np.int32(3), do_train=np.True_
    )
    assert args.learning_rate == 0.5


def test_validation_accepts_all_optimizers_schedules_and_trackers():
    """A missing library is reported when the optimizer or the callback is created."""
    for name in OptimizerNames:
        assert TrainingArguments(optim=name.value).optim is name
    for name in SchedulerType:
        assert (
            TrainingArguments(lr_scheduler_type=name.value, eval_strategy="epoch").lr_scheduler_type
            is name
        )
    for name in TRACKERS:
        assert TrainingArguments(report_to=name).report_to == [name]


def test_report_to_error_offers_accepted_trackers_only():
    for written in ("tensorbord", ["tensorbord", "wandb"]):
        with pytest.raises(ValueError, match="report_to='tensorbord'") as error:
            TrainingArguments(report_to=written)
        offered = str(error.value).partition("Choose from: ")[2].rstrip(".").split(", ")
        for name in offered:
            TrainingArguments(report_to=name)


@pytest.mark.parametrize(
    ("given", "warns"),
    [
        ({"metric_for_best_model": "eval_wer"}, True),
        ({"metric_for_best_model": "eval_wer", "greater_is_better": True}, False),
        ({"metric_for_best_model": "eval_loss"}, False),
        ({"metric_for_best_model": "accuracy"}, False),
    ],
    ids=str,
)
def test_metric_that_is_usually_minimized_warns_when_the_default_maximizes_it(caplog, given, warns):
    args = TrainingArguments(use_cpu=True, **given)
    assert args.greater_is_better is (given["metric_for_best_model"] != "eval_loss")
    assert ("greater_is_better=False" in caplog.text) == warns


def test_rules_report_a_misspelt_argument_instead_of_never_applying():
    args = TrainingArguments(use_cpu=True)
    readable = ReadableArguments(args, vars(args))
    assert Rule(lambda args: args.use_cpu, "use_cpu={args.use_cpu}").messages(readable)
    with pytest.raises(AttributeError, match="'use_cpus'"):
        Rule(lambda args: args.use_cpus, "no").messages(readable)
    # A field of another class, or a value that these arguments lack, skips the rule.
    assert Rule(lambda args: args.sortish_sampler or args.groups, "no").messages(readable) == []


def test_rules_and_their_messages_name_arguments_that_exist():
    """Also those behind an `and`, which an example would not reach."""
    argument_names = {field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)}
    argument_names |= set(ReadableArguments.__annotations__)
    tree = ast.parse(inspect.getsource(rules))
    read = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "args"
    }
    messages = [rule.message for rule in RULES]
    named = {name for text in messages for name in re.findall(r"\{args\.(\w+)", text)}
    assert len(read) > 30
    assert len(named) > 10
    assert (read | named) - argument_names == set()


@pytest.mark.parametrize("fsdp", ["", "full_shard"])
@pytest.mark.parametrize(
    ("fsdp_config", "message"),
    [
        ({"version": 3}, r"fsdp_config\['version'\]=3 must be 1 or 2"),
        ({"reshard_after_forward": "full_shart"}, "'full_shart' must be"),
        ({"cpu_ofload": True}, "'cpu_ofload', which is not known. Did you mean 'cpu_offload'"),
    ],
)
def test_misspelt_settings_of_fsdp_are_refused_without_fsdp_too(fsdp, fsdp_config, message):
    with pytest.raises(ValueError, match=message):
        TrainingArguments(use_cpu=True, fsdp=fsdp, fsdp_config=fsdp_config)
