"""The type of `args` declares only what both Trainers have."""

from lightrainer import LightningBridge, TrainingArguments
from lightrainer.callbacks.arguments import CallbackArguments


def test_every_declared_argument_exists(tmp_path):
    attributes = {*CallbackArguments.__annotations__, "to_dict", "to_sanitized_dict"}
    assert {"output_dir", "bf16"} <= attributes
    training_arguments = TrainingArguments(output_dir=str(tmp_path))
    bridge_arguments = LightningBridge().args
    assert [name for name in attributes if not hasattr(training_arguments, name)] == []
    assert [name for name in attributes if not hasattr(bridge_arguments, name)] == []
