"""Documented values that are not supported are refused, never ignored."""

import dataclasses

from lightrainer.facade.arguments import TrainingArguments, unsupported
from lightrainer.facade.arguments.enums import OptimizerNames, SchedulerType
from lightrainer.facade.arguments.validation import INTEGRATIONS

FIELDS = {item.name for item in dataclasses.fields(TrainingArguments)}


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
