"""`LightningCLI` understands modules and data: models, optimizers, metrics and datasets out of a
YAML file.
"""

import pytest
import torch
from lightning.pytorch.cli import LightningCLI
from torchmetrics.classification import MulticlassAccuracy

from helpers.lightning.tiny_modules import Counted, Net, TokenNet, same_weights
from lightrainer.lightning_modules import (
    CausalLMModule,
    DataModule,
    LossModule,
    OptimizerConfig,
    ScheduleConfig,
    Seq2SeqModule,
    SequenceClassificationModule,
    TokenClassificationModule,
)

CONFIG = """
seed_everything: 3
trainer:
  accelerator: auto
  max_epochs: 2
  default_root_dir: FOLDER
  enable_progress_bar: false
  enable_model_summary: false
  num_sanity_val_steps: 0
  accumulate_grad_batches: 2
  logger: {class_path: lightning.pytorch.loggers.CSVLogger, init_args: {save_dir: FOLDER}}
  callbacks:
    - {class_path: lightning.pytorch.callbacks.ModelCheckpoint, init_args: {dirpath: FOLDER/saved, filename: last}}
model:
  class_path: lightrainer.lightning_modules.LossModule
  init_args:
    model: {class_path: helpers.lightning.tiny_modules.Net, init_args: {width: 5}}
    optimizer: {name: adamw_torch, learning_rate: 0.1, weight_decay: 0.1}
    schedule: {name: cosine, warmup_steps: 0.1}
    label_smoothing: 0.1
    metrics: {acc: {class_path: torchmetrics.classification.MulticlassAccuracy, init_args: {num_classes: 3}}}
data:
  train_dataset: helpers.lightning.tiny_modules.points
  val_dataset:
    a: helpers.lightning.tiny_modules.points
    b: {class_path: helpers.lightning.tiny_modules.Counted, init_args: {count: 5}}
  test_dataset: {class_path: helpers.lightning.tiny_modules.Counted, init_args: {count: 6}}
  batch_size: 4
  group_by_length: false
"""


@pytest.fixture(autouse=True)
def _no_arguments(monkeypatch):
    """Lightning warns if the program has its own arguments, as pytest has."""
    monkeypatch.setattr("sys.argv", ["program"])
    # Lightning 2.6 uses names that jsonargparse 4.53 is about to rename (2026).
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.replace("FOLDER", str(tmp_path)))
    return path


def cli(kind, *arguments, run=True, subclasses=True):
    options = {
        "subclass_mode_model": subclasses,
        "save_config_callback": None,
        "seed_everything_default": 7,
    }
    return LightningCLI(kind, DataModule, args=list(map(str, arguments)), run=run, **options)


def test_cli_file_describes_a_training(config, tmp_path, monkeypatch, capsys):
    """An argument on the command line goes before it; `load_from_checkpoint` needs nothing but
    the checkpoint.
    """
    monkeypatch.chdir(tmp_path)
    lightning_cli = cli(
        LossModule, "fit", "--config", config, "--model.optimizer.learning_rate=0.2"
    )
    module, trainer = lightning_cli.model, lightning_cli.trainer
    assert trainer.global_step == 6
    assert module.optimizer_config == OptimizerConfig(
        name="adamw_torch", learning_rate=0.2, weight_decay=0.1
    )
    assert (module.label_smoothing, type(module.model), module.model.layers[0].out_features) == (
        0.1,
        Net,
        5,
    )
    assert isinstance(lightning_cli.datamodule.val_dataset["b"], Counted)
    assert {"val_a_loss", "val_b_loss", "val_a_acc", "val_b_acc"} <= set(trainer.callback_metrics)
    assert "val_loss" not in trainer.callback_metrics

    file = tmp_path / "saved" / "last.ckpt"
    torch.load(file, weights_only=True)  # plain values, and nothing else
    loaded = LossModule.load_from_checkpoint(file)
    assert same_weights(loaded.model, module.model)
    assert loaded.learning_rate == 0.2
    assert isinstance(loaded.metrics.metrics[0], MulticlassAccuracy)
    rows = (tmp_path / "lightning_logs" / "version_0" / "hparams.yaml").read_text()
    assert "learning_rate: 0.2" in rows
    assert "batch_size: 4" in rows

    tested = cli(LossModule, "test", "--config", config, f"--ckpt_path={file}")
    assert tested.datamodule.test_dataset.items[0].keys() == {"x", "labels"}
    assert "test_acc" in tested.trainer.callback_metrics


@pytest.mark.parametrize(
    ("kind", "further"),
    [
        (LossModule, []),
        (CausalLMModule, []),
        (SequenceClassificationModule, ["--model.num_labels=4"]),
        (TokenClassificationModule, ["--model.num_labels=4", "--model.train_metrics=true"]),
        (Seq2SeqModule, ["--model.generation={max_new_tokens: 4}", "--model.pad_token_id=0"]),
    ],
)
def test_cli_modules_have_all_options(kind, further):
    """Those of its parents too; with an optimizer and a schedule of torch, by their class paths."""
    options = [
        "--model.model=helpers.lightning.tiny_modules.TokenNet",
        "--model.loss_fn={class_path: torch.nn.CrossEntropyLoss, init_args: {ignore_index: 7}}",
        "--model.optimizer={class_path: torch.optim.SGD, init_args: {lr: 0.5}}",
        (
            "--model.schedule={class_path: torch.optim.lr_scheduler.StepLR, init_args: "
            "{step_size: 3}}"
        ),
        "--model.neftune_noise_alpha=5",
        "--model.label_names=[labels]",
        "--data.batch_size=7",
    ]
    lightning_cli = cli(kind, *options, *further, run=False, subclasses=False)
    lightning_cli.model.configure_model()
    assert type(lightning_cli.model) is kind
    assert isinstance(lightning_cli.model.model, TokenNet)
    assert isinstance(lightning_cli.model.configure_optimizers()["optimizer"], torch.optim.SGD)
    assert lightning_cli.model.learning_rate == 0.5
    assert lightning_cli.model.loss_fn.ignore_index == 7
    assert (lightning_cli.model.neftune_noise_alpha, lightning_cli.datamodule.batch_size) == (5, 7)


# As an error, the warning would stop jsonargparse from continuing.
@pytest.mark.filterwarnings("default::UserWarning")
def test_cli_fills_in_the_names_of_optimizer_and_schedule(config):
    text = config.read_text()
    for name in ("name: adamw_torch, ", "name: cosine, "):
        assert name in text
        text = text.replace(name, "")
    config.write_text(text)
    module = cli(LossModule, "--config", config, run=False).model
    assert module.optimizer_config == OptimizerConfig(learning_rate=0.1, weight_decay=0.1)
    assert module.schedule_config == ScheduleConfig(warmup_steps=0.1)


def test_cli_written_configuration_can_be_read(config, tmp_path):
    """The whole configuration, with a dict of a function and a class as its datasets, and one of
    functions alone.
    """
    options = [
        "--data.val_dataset={a: helpers.lightning.tiny_modules.points}",
        "--data.test_dataset=helpers.lightning.tiny_modules.points",
    ]
    for arguments in ([], options):
        lightning_cli = cli(LossModule, "--config", config, *arguments, run=False)
        written = lightning_cli.parser.dump(lightning_cli.config)
        (tmp_path / "written.yaml").write_text(written)
        again = cli(LossModule, "--config", tmp_path / "written.yaml", run=False)
        assert again.parser.dump(again.config) == written
        again.datamodule.setup("validate")
        assert len(again.datamodule.val_dataset["a"]) == 22
