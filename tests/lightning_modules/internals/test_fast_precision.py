"""Lightning's precision plugin that casts forward passes only, under Lightning's own loops."""

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from listening import Listening

from lightrainer.lightning_modules.internals import fast_path, lightning_internals
from lightrainer.lightning_modules.internals.precision import LossScaler, casting

STEPS = 4


class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.formats = set()

    def forward(self, x):
        out = self.layer(x)
        self.formats.add(out.dtype)
        return out


class Module(LightningModule):
    """One step of manual optimization with gradients that are infinite in float16 at the first scale."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(3)
        self.inner = Inner()
        self.counted, self.losses = [], []

    def training_step(self, batch, batch_idx):
        out = self.inner(batch)
        loss = (out**2).mean() + (out @ out.T).mean()
        assert loss.dtype == torch.float32
        self.losses.append(loss.item())
        if fast_path.is_plain(self.trainer):
            scaler = self.trainer.precision_plugin.scaler
            (loss if scaler is None else scaler.scale(loss)).backward()
        else:
            self.manual_backward(loss)
        optimizer = self.optimizers()
        if self.trainer.precision_plugin.scaler is not None:
            self.trainer.precision_plugin.scaler.unscale_(optimizer.optimizer)
        torch.nn.utils.clip_grad_norm_(self.parameters(), 0.5)
        optimizer.step()
        self.zero_grad()
        self.counted.append(self.trainer.global_step)

    def validation_step(self, batch, batch_idx):
        assert not torch.is_autocast_enabled("cpu")
        self.losses.append(self.inner(batch).mean().item())

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        self.validation_step(batch, batch_idx)
        return batch

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.125)


def trainer_of(precision, callbacks=(), **options):
    scaler = LossScaler("cpu", init_scale=2.0**26) if precision == "16-mixed" else None
    return Trainer(
        plugins=[fast_path.ForwardPrecision(precision, "cpu", scaler)],
        callbacks=list(callbacks),
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def loader():
    return torch.utils.data.DataLoader(torch.linspace(-1.0, 1.0, 4 * STEPS).reshape(STEPS, 4))


def fitted(precision, callbacks=()):
    trainer, module = trainer_of(precision, callbacks, limit_val_batches=0), Module()
    with lightning_internals.quiet(), casting(module.inner, trainer.precision_plugin.autocast_context_manager):
        trainer.fit(module, lightning_internals.combined(loader(), training=True), val_dataloaders=[])
    return trainer, module


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize(("name", "dtype"), [("bf16-mixed", torch.bfloat16), ("16-mixed", torch.float16)])
def test_with_and_without_lightnings_wrappers(name, dtype):
    """The same losses and weights, and the same count of steps; those that are left out count too."""
    listening = Listening()
    (alone, bare), (heard, wrapped) = fitted(name), fitted(name, [listening])
    assert fast_path.is_plain(alone)
    assert not fast_path.is_plain(heard)
    assert bare.inner.formats == wrapped.inner.formats == {dtype}
    assert bare.losses == wrapped.losses
    assert torch.equal(bare.inner.layer.weight, wrapped.inner.layer.weight)
    assert bare.counted == wrapped.counted == [1, 2, 3, 4]
    assert listening.heard == STEPS
    if name == "16-mixed":
        left, right = (one.precision_plugin.scaler for one in (alone, heard))
        assert left.state_dict() == right.state_dict()
        assert left.get_scale() < 2.0**26


def test_lightnings_own_float16_on_the_cpu_is_another_one():
    """Negative control: what `precision="16-mixed"` gives here, and why the plugin is passed."""
    with pytest.warns(UserWarning, match="fp16 is not supported on CPU"):
        trainer = Trainer(accelerator="cpu", precision="16-mixed", logger=False, enable_checkpointing=False)
    assert trainer.precision_plugin.precision == "bf16-mixed"
    assert trainer_of("16-mixed").precision_plugin.precision == "16-mixed"
