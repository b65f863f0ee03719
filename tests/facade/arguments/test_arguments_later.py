"""Arguments that versions after 5.3.0 added, beside the older names of the same setting."""

import copy
import dataclasses
import json
import pickle

import pytest

from lightrainer.facade.arguments import TrainingArguments, hardware
from lightrainer.facade.arguments.checkpointing import checkpointing
from lightrainer.facade.parser.argument_parser import HfArgumentParser


def make(**kwargs):
    return TrainingArguments(**{"output_dir": "out", "use_cpu": True, **kwargs})


def both(args):
    return args.activation_checkpointing, args.gradient_checkpointing


@pytest.mark.parametrize("older", [True, False, None])
def test_the_newer_name_overrules_the_older_one(older, caplog):
    assert both(make(gradient_checkpointing=older)) == (bool(older), older)
    assert both(make(activation_checkpointing=True, gradient_checkpointing=older)) == (True, True)
    assert not caplog.messages
    assert both(make(activation_checkpointing=False, gradient_checkpointing=older)) == (False, older and False)
    assert len(caplog.messages) == (1 if older else 0)


def test_settings_under_either_name():
    for name in ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"):
        for written in ({"every_n_layers": 2}, '{"every_n_layers": "2"}'):
            args = make(gradient_checkpointing=True, **{name: written})
            assert checkpointing(args) == (True, {"every_n_layers": 2})
            assert args.activation_checkpointing_kwargs == args.gradient_checkpointing_kwargs == {"every_n_layers": 2}
    args = make(
        activation_checkpointing_kwargs={"offload": True}, gradient_checkpointing_kwargs={"use_reentrant": True}
    )
    assert checkpointing(args) == (False, {"offload": True})


@pytest.mark.parametrize("name", ["activation_checkpointing", "gradient_checkpointing"])
@pytest.mark.parametrize("before", [True, False])
def test_a_later_change_under_either_name_counts(name, before):
    for args in (make(gradient_checkpointing=before), copy.deepcopy(make(activation_checkpointing=before))):
        assert checkpointing(args)[0] is before
        setattr(args, name, not before)
        args_again = pickle.loads(pickle.dumps(args))
        setattr(args, f"{name}_kwargs", {"use_reentrant": True})
        assert checkpointing(args) == (not before, {"use_reentrant": True})
        assert checkpointing(args_again) == (not before, {})
    assert both(make().set_training(gradient_checkpointing=True)) == (True, True)
    assert checkpointing(make(activation_checkpointing=True).set_training()) == (False, {})


def test_copies_and_json_keep_the_settings():
    args = make(activation_checkpointing=True, activation_checkpointing_kwargs={"every_n_layers": 2})
    for other in (dataclasses.replace(args), TrainingArguments(**json.loads(args.to_json_string()))):
        assert other == args
        assert checkpointing(other) == (True, {"every_n_layers": 2})
    assert checkpointing(dataclasses.replace(args, activation_checkpointing=False))[0] is False


def test_on_a_command_line():
    words = ["--output_dir", "out", "--use_cpu", "--activation_checkpointing", "--dataloader-in-order", "false"]
    words += ["--activation_checkpointing_kwargs", '{"every_n_layers": 3}', "--ddp_static_graph", "true"]
    words += ["--dataloader_num_workers", "1", "--dataloader_multiprocessing_context", "spawn"]
    words += ["--trackio_static_space_id", "me/space", "--trackio_bucket_id", "me/bucket"]
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(words)
    assert checkpointing(args) == (True, {"every_n_layers": 3})
    assert (args.dataloader_in_order, args.dataloader_multiprocessing_context) == (False, "spawn")
    assert (args.trackio_static_space_id, args.trackio_bucket_id) == ("me/space", "me/bucket")
    assert args.ddp_static_graph
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(["--activation_checkpointing", "false"])
    assert both(args) == (False, False)


def test_workers_on_an_apple_gpu_are_forked(monkeypatch):
    from lightrainer.facade.arguments import coercion

    monkeypatch.setattr(coercion, "has_mps", lambda: True)
    assert make(dataloader_num_workers=2).dataloader_multiprocessing_context == "fork"
    assert make(dataloader_num_workers=1).dataloader_multiprocessing_context is None
    chosen = make(dataloader_num_workers=2, dataloader_multiprocessing_context="spawn")
    assert chosen.dataloader_multiprocessing_context == "spawn"


def test_an_apple_gpu_is_found_on_a_mac_only(monkeypatch):
    import torch

    monkeypatch.setattr(hardware.sys, "platform", "linux")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert not hardware.has_mps()
    monkeypatch.setattr(hardware.sys, "platform", "darwin")
    assert hardware.has_mps()


def test_setters_have_the_later_arguments():
    args = make().set_training(activation_checkpointing=True)
    assert args.gradient_checkpointing
    args.set_dataloader(num_workers=1, multiprocessing_context="spawn", in_order=False)
    assert (args.dataloader_multiprocessing_context, args.dataloader_in_order) == ("spawn", False)
