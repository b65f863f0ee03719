"""Forms in which scripts of the reference pass values, and attributes that they read."""

import json

import pytest

from helpers.trainer.tiny_trainings import points, trainer
from lightrainer import TrainingArguments


@pytest.mark.parametrize(
    "name", ["accelerator_config", "fsdp_config", "resume_from_checkpoint", "logging_dir"]
)
def test_path_argument_equals_its_text(tmp_path, name):
    path = tmp_path / "settings.json"
    path.write_text("{}")
    given = [TrainingArguments(tmp_path, **{name: form}) for form in (path, str(path))]
    assert getattr(given[0], name) == getattr(given[1], name)
    json.loads(given[0].to_json_string())


def test_attributes_that_scripts_read(tmp_path):
    made = trainer(tmp_path, per_device_train_batch_size=4)
    assert TrainingArguments.default_optim == made.args.optim == "adamw_torch_fused"
    assert (made.is_fsdp_xla_v1_enabled, made.is_fsdp_xla_v2_enabled) == (False, False)
    loader = made.get_train_dataloader()
    assert (loader.total_batch_size, loader.total_dataset_length) == (4, len(points()))
    assert made.args.accelerator_config.pop("split_batches", None) is False
    assert made.args.accelerator_config.pop("no such key", 5) == 5
