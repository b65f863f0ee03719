"""The logger without a place of its own: metrics go to the listener, and callbacks of Lightning find a logger."""

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from plain_fit import Model, run

from lightrainer.facade.trainer.lightning_trainer import ForwardingLogger


def test_metrics_go_to_the_listener(tmp_path):
    """Those of `module.log`, and those that callbacks give to the logger; Lightning's whole epochs are left out."""
    heard = []

    class Logging(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            module.log("seen", torch.tensor(float(batch_idx)))
            trainer.logger.log_metrics({"own": 1, "epoch": 0}, step=3)
            trainer.logger.log_metrics({"epoch": 0}, step=3)

    logger = ForwardingLogger(heard.append, str(tmp_path))
    saving = ModelCheckpoint()
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, logger=logger, log_every_n_steps=1, callbacks=[Logging(), saving], **quiet
    )
    run(trainer, Model())
    assert heard == [{"own": 1}, {"seen": 0.0}, {"own": 1}, {"seen": 1.0}]
    assert saving.dirpath == str(tmp_path / "checkpoints"), "there is a folder of a name or a version between"
    assert trainer.log_dir == str(tmp_path)
    logger.log_hyperparams({"rate": 1})
