"""What the API documents and is not done yet is said, never ignored."""

import dataclasses

import pytest

from lightrainer.facade.arguments import TrainingArguments, unsupported
from lightrainer.facade.arguments.enums import OptimizerNames, SchedulerType
from lightrainer.facade.arguments.support import PARTLY
from lightrainer.facade.arguments.validation import INTEGRATIONS

FIELDS = {item.name for item in dataclasses.fields(TrainingArguments)}


def test_the_fields_of_which_some_values_are_refused_exist():
    assert set(PARTLY) <= FIELDS


@pytest.mark.parametrize("value", [None, False])
@pytest.mark.parametrize("name", ["fp16", "push_to_hub", "hub_private_repo", "fsdp", "torch_compile"])
def test_turning_it_off_is_fine(name, value):
    assert unsupported(TrainingArguments(**{name: value})) == []


def test_defaults_written_out_are_fine():
    defaults = TrainingArguments()
    again = TrainingArguments(**{name: getattr(defaults, name) for name in FIELDS})
    assert again == defaults
    assert unsupported(again) == []


def test_what_is_harmless_is_accepted():
    kwargs = {"hub_token": "token", "local_rank": 0}
    assert unsupported(TrainingArguments(**kwargs)) == []


@pytest.mark.parametrize("name", list(OptimizerNames))
def test_all_optimizers_are_in_effect(name):
    """A library that is not there is named when the optimizer is made."""
    assert TrainingArguments(optim=name.value).optim is name


@pytest.mark.parametrize("name", list(SchedulerType))
def test_all_schedules_are_in_effect(name):
    args = TrainingArguments(lr_scheduler_type=name.value, eval_strategy="epoch")
    assert args.lr_scheduler_type is name


def test_all_documented_trackers_are_in_effect():
    """A package that is not there is named when the callback is made."""
    for name in INTEGRATIONS:
        if name == "neptune":
            with pytest.raises(NotImplementedError, match=r"neptune.*deprecated.*use another tracker"):
                TrainingArguments(report_to=["tensorboard", name])
        else:
            assert TrainingArguments(report_to=name).report_to == [name]


def test_all_ways_of_dealing_out_batches_are_in_effect():
    config = {"even_batches": False, "use_seedable_sampler": False, "split_batches": True, "dispatch_batches": True}
    config |= {"non_blocking": True, "gradient_accumulation_kwargs": {"sync_each_batch": True}}
    assert unsupported(TrainingArguments(accelerator_config=config)) == []


def test_what_is_set_later_is_found_again():
    args = TrainingArguments()
    args.report_to, args.debug = ["neptune"], ["tpu_metrics_debug"]
    assert [line.partition("=")[0] for line in unsupported(args)] == ["debug", "report_to"]
    assert unsupported(args, ["seed"]) == []
