"""All forms of `accelerator_config`, and refusals."""

import json
from dataclasses import replace

import pytest
from transformers import TrainingArguments as Reference
from transformers.trainer_pt_utils import AcceleratorConfig as ReferenceAcceleratorConfig

from helpers.processes.starting import finished_code
from lightrainer.facade.arguments import AcceleratorConfig, TrainingArguments, problems

CONTENT = dict.fromkeys(("dispatch_batches", "even_batches", "use_seedable_sampler"), False)
CONTENT |= {"split_batches": True, "non_blocking": True}
CONTENT["gradient_accumulation_kwargs"] = {"sync_each_batch": True, "num_steps": 3}


def make(config, **kwargs):
    return TrainingArguments(
        **{"output_dir": "out", "use_cpu": True, "accelerator_config": config, **kwargs}
    )


def test_accelerator_config_forms_give_the_same_settings(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONTENT))
    objects = [AcceleratorConfig(**CONTENT), ReferenceAcceleratorConfig(**CONTENT)]
    for form in (
        CONTENT,
        str(path),
        json.dumps(CONTENT),
        *objects,
        AcceleratorConfig.from_json_file(str(path)),
    ):
        args = make(form)
        assert args.accelerator_config == AcceleratorConfig(**CONTENT)
        assert args.gradient_accumulation_steps == 3
        assert problems(args) == []
        assert TrainingArguments(**json.loads(args.to_json_string())) == args


def test_accelerator_config_class_is_refused_as_in_the_reference():
    for kind in (AcceleratorConfig, ReferenceAcceleratorConfig, int):
        with pytest.raises(NotImplementedError):
            Reference(accelerator_config=kind)
        with pytest.raises(
            NotImplementedError,
            match=rf"Tried passing in a callable to `accelerator_config`: {kind.__name__} is",
        ):
            make(kind)


REFUSED = [
    ({"split_batch": True}, "Did you mean 'split_batches'"),
    ({"split_batches": "yes"}, "split_batches='yes'"),
    ({"gradient_accumulation_kwargs": 3}, "gradient_accumulation_kwargs=3"),
    ({"gradient_accumulation_kwargs": {"steps": 3}}, "Did you mean 'num_steps'"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=str)
def test_wrong_settings_are_named(config, message):
    with pytest.raises((TypeError, ValueError), match=f"^accelerator_config.*{message}"):
        make(config)


def test_accumulation_steps_are_given_once():
    """As in the reference, whose Trainer refuses it; the same number twice is what a copy of the
    arguments has.
    """
    config = {"gradient_accumulation_kwargs": {"num_steps": 4}}
    args = make(config)
    assert args.gradient_accumulation_steps == 4
    assert config == {"gradient_accumulation_kwargs": {"num_steps": 4}}
    assert replace(args) == args
    with pytest.raises(
        ValueError,
        match=r"`num_steps` is set but .*num_steps=4, gradient_accumulation_steps=2\. Pass one",
    ):
        make(config, gradient_accumulation_steps=2)
    args.gradient_accumulation_steps = 8
    assert len(problems(args)) == 1


def test_accelerator_config_configured_state_is_required(tmp_path):
    code = """
        from lightrainer import TrainingArguments
        try:
            TrainingArguments(accelerator_config={"use_configured_state": True})
        except ValueError as error:
            assert "use_configured_state=True, but no state is configured" in str(error), error
        else:
            raise SystemExit("accepted")
        import torch
        torch.cuda.is_available = lambda: True  # so that there would be another device than the one that is asked for
        torch.cuda.device_count = lambda: 1
        assert TrainingArguments().device.type == "cuda"
        from accelerate import PartialState
        PartialState(cpu=True)
        assert TrainingArguments().device.type == "cuda", "only where it is asked for"
        args = TrainingArguments(accelerator_config={"use_configured_state": True})
        assert (args.device.type, args.world_size, args.process_index, args.should_save) == ("cpu", 1, 0, True)
    """
    finished_code(code, tmp_path)


CONFIGS = [
    ({"non_blocking": True}, "dataloader_pin_memory=True"),
    ({"gradient_accumulation_kwargs": {"adjust_scheduler": False}}, "adjust_scheduler=False"),
    (
        {"gradient_accumulation_kwargs": {"sync_with_dataloader": False}},
        "sync_with_dataloader=False",
    ),
]


@pytest.mark.parametrize(("config", "expected_message"), CONFIGS, ids=str)
def test_settings_without_effect_are_warned_of(config, expected_message, caplog):
    """As in the reference, whose Trainer never reads these two keys."""
    make(config)
    assert [expected_message in message for message in caplog.messages] == [True]
    caplog.clear()
    make({"gradient_accumulation_kwargs": {"adjust_scheduler": True, "sync_with_dataloader": True}})
    make({"non_blocking": True}, use_cpu=False)
    assert caplog.messages == []
