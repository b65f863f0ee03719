"""Forms in which scripts of the reference pass values, and attributes that they read."""

import json

import pytest

from helpers.trainer.tiny_trainings import make_trainer, points
from lightrainer import TrainingArguments


@pytest.mark.parametrize(
    "name", ["accelerator_config", "fsdp_config", "resume_from_checkpoint", "logging_dir"]
)
def test_path_argument_equals_its_text(tmp_path, name):
    path = tmp_path / "settings.json"
    path.write_text("{}")
    variants = [TrainingArguments(tmp_path, **{name: form}) for form in (path, str(path))]
    assert getattr(variants[0], name) == getattr(variants[1], name)
    json.loads(variants[0].to_json_string())


def test_attributes_that_scripts_read(tmp_path):
    trainer = make_trainer(tmp_path, per_device_train_batch_size=4)
    assert TrainingArguments.default_optim == trainer.args.optim == "adamw_torch_fused"
    assert (trainer.is_fsdp_xla_v1_enabled, trainer.is_fsdp_xla_v2_enabled) == (False, False)
    loader = trainer.get_train_dataloader()
    assert (loader.total_batch_size, loader.total_dataset_length) == (4, len(points()))
    assert trainer.args.accelerator_config.pop("split_batches", None) is False
    assert trainer.args.accelerator_config.pop("no such key", 5) == 5
