"""What the API documents and is not done yet is said, never ignored."""

import dataclasses

import pytest

from lightrainer.facade.arguments import TrainingArguments, unsupported
from lightrainer.facade.arguments.support import HARMLESS, IN_EFFECT, NOT_YET, PARTLY
from lightrainer.facade.enums import OptimizerNames, SchedulerType

FIELDS = {item.name for item in dataclasses.fields(TrainingArguments)}

AWAY_FROM_DEFAULT = {
    "push_to_hub": True,
    "hub_private_repo": True,
    "hub_model_id": "me/model",
    "hub_strategy": "end",
    "hub_always_push": True,
    "hub_revision": "v1",
}


def test_every_field_is_either_in_effect_or_refused():
    assert IN_EFFECT | set(NOT_YET) | HARMLESS == FIELDS
    assert not IN_EFFECT & set(NOT_YET)
    assert not HARMLESS & (IN_EFFECT | set(NOT_YET))
    assert set(PARTLY) <= IN_EFFECT


def test_every_field_that_is_not_in_effect_is_tried():
    assert set(AWAY_FROM_DEFAULT) == set(NOT_YET)


@pytest.mark.parametrize("name", AWAY_FROM_DEFAULT)
def test_away_from_its_default_it_raises_with_its_name_and_a_remedy(name):
    with pytest.raises(NotImplementedError) as error:
        TrainingArguments(use_cpu=True, **{name: AWAY_FROM_DEFAULT[name]})
    (line,) = [line for line in str(error.value).splitlines() if line.startswith(f"{name}=")]
    assert line.endswith(NOT_YET[name])


def test_the_value_is_shown_as_it_was_written():
    for kwargs, shown in (({"hub_strategy": "end"}, "hub_strategy='end'"),):
        with pytest.raises(NotImplementedError, match=shown):
            TrainingArguments(**kwargs)


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
    kwargs = {"hub_token": "token", "project": "mine", "trackio_space_id": None, "local_rank": 0}
    kwargs |= {"trackio_bucket_id": "me/bucket", "trackio_static_space_id": False}
    assert unsupported(TrainingArguments(**kwargs)) == []


@pytest.mark.parametrize("name", list(OptimizerNames))
def test_all_optimizers_are_in_effect(name):
    """A library that is not there is named when the optimizer is made."""
    assert TrainingArguments(optim=name.value).optim is name


@pytest.mark.parametrize("name", list(SchedulerType))
def test_all_schedules_are_in_effect(name):
    args = TrainingArguments(lr_scheduler_type=name.value, eval_strategy="epoch")
    assert args.lr_scheduler_type is name


def test_trackers_that_are_not_there_are_refused():
    for name in ("wandb", "mlflow", "trackio"):
        with pytest.raises(NotImplementedError, match=f"report_to=.*{name}"):
            TrainingArguments(report_to=["tensorboard", name])
    assert TrainingArguments(report_to="tensorboard").report_to == ["tensorboard"]


def test_all_ways_of_dealing_out_batches_are_in_effect():
    config = {"even_batches": False, "use_seedable_sampler": False, "split_batches": True, "dispatch_batches": True}
    config |= {"non_blocking": True, "gradient_accumulation_kwargs": {"sync_each_batch": True}}
    assert unsupported(TrainingArguments(accelerator_config=config)) == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ACCELERATE_MIXED_PRECISION", "fp8"),
        ("ACCELERATE_MIXED_PRECISION", "int8"),
        ("ACCELERATE_USE_DEEPSPEED", "true"),
        ("ACCELERATE_USE_FSDP", "1"),
    ],
)
def test_what_accelerate_launch_asks_for_is_not_ignored(variable, value, monkeypatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(NotImplementedError, match=f"{variable}='{value}'"):
        TrainingArguments()
    monkeypatch.setenv(variable, "no")
    TrainingArguments()


def test_what_is_set_later_is_found_again():
    args = TrainingArguments()
    args.hub_strategy, args.debug = "end", ["tpu_metrics_debug"]
    assert [line.partition("=")[0] for line in unsupported(args)] == ["hub_strategy", "debug"]
    assert unsupported(args, ["seed"]) == []
