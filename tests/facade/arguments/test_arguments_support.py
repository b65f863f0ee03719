"""Documented values that are not supported are refused, never ignored."""

import dataclasses

import pytest

from lightrainer.facade.arguments import TrainingArguments, unsupported
from lightrainer.facade.arguments.enums import OptimizerNames, SchedulerType
from lightrainer.facade.arguments.validation import INTEGRATIONS

FIELDS = {item.name for item in dataclasses.fields(TrainingArguments)}


@pytest.mark.parametrize("value", [None, False])
def test_features_can_be_turned_off(value):
    names = ("fp16", "push_to_hub", "hub_private_repo", "fsdp", "torch_compile")
    assert unsupported(TrainingArguments(**dict.fromkeys(names, value))) == []


def test_defaults_can_be_written_out():
    defaults = TrainingArguments()
    again = TrainingArguments(**{name: getattr(defaults, name) for name in FIELDS})
    assert again == defaults
    assert unsupported(again) == []


def test_all_optimizers_schedules_and_trackers_are_accepted():
    """A library that is not there is named when the optimizer or the callback is made."""
    for name in OptimizerNames:
        assert TrainingArguments(optim=name.value).optim is name
    for name in SchedulerType:
        assert TrainingArguments(lr_scheduler_type=name.value, eval_strategy="epoch").lr_scheduler_type is name
    for name in set(INTEGRATIONS) - {"neptune"}:
        assert TrainingArguments(report_to=name).report_to == [name]


def test_unsupported_values_are_found_again_later():
    with pytest.raises(NotImplementedError, match="neptune"):
        TrainingArguments(report_to=["tensorboard", "neptune"])
    args = TrainingArguments()
    args.report_to, args.debug = ["neptune"], ["tpu_metrics_debug"]
    assert [line.partition("=")[0] for line in unsupported(args)] == ["debug", "report_to"]
    assert unsupported(args, ["seed"]) == []
