"""Folders as the checkpoints of `lightning.Trainer`: what goes where, and what cannot be."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins import MixedPrecision
from torch import nn

from helpers.lightning.tiny_modules import make_trainer, same_weights
from lightrainer.lightning_modules import (
    FolderCheckpointIO,
    LossModule,
    OptimizerConfig,
    build_loader,
)
from lightrainer.lightning_modules.checkpoints import load_torch, read_weights
from lightrainer.lightning_modules.internals import lightning_internals


class Net(nn.Module):
    """With tied weights."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x, labels=None):
        return {"loss": nn.functional.cross_entropy(self.second(torch.tanh(self.first(x))), labels)}


class WithMore(LossModule):
    """Has weights beside the model's, a second optimizer, and hyperparameters."""

    def __init__(self, model):
        super().__init__(model, optimizer=OptimizerConfig(learning_rate=0.1))
        self.extra = nn.Linear(2, 2)
        self.automatic_optimization = False
        self.save_hyperparameters({"rate": 0.1, "place": Path("here")})

    def configure_optimizers(self):
        return [
            self.optimizer_config.build(self.model),
            torch.optim.SGD(self.extra.parameters(), momentum=0.9, lr=0.1),
        ]

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        loss = self.compute_loss(batch)[0] + self.extra(torch.ones(2)).sum()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()
        return loss


def samples(count=8):
    features = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    return [{"x": x, "labels": x.argmax()} for x in features]


def fit(module, *, resume=None, folder_io=None, plugins=(), epochs=1, **options):
    folder_io = FolderCheckpointIO(module) if folder_io is None else folder_io
    with lightning_internals.quiet():
        trainer = make_trainer(max_epochs=epochs, plugins=[folder_io, *plugins], **options)
        trainer.fit(module, build_loader(samples(), batch_size=4), ckpt_path=resume)
    return trainer


def test_everything_of_a_module_comes_back(tmp_path, caplog):
    """Weights beside the model's, further optimizers, hyperparameters; what cannot be written
    safely is named.
    """
    module = WithMore(Net())
    with caplog.at_level(logging.WARNING):
        fit(module).save_checkpoint(tmp_path / "checkpoint-4")
    assert caplog.text.count("cannot be saved safely") == 1
    assert "without 'place', whose value cannot be saved safely" in caplog.text
    folder = tmp_path / "checkpoint-4"
    assert set(read_weights(folder)) == set(module.model.state_dict())
    fresh = WithMore(Net())
    trainer = fit(fresh, resume=folder)
    assert same_weights(module, fresh)
    assert trainer.optimizers[1].state_dict()["state"][0]["momentum_buffer"] is not None
    assert trainer.global_step == 4


def test_states_by_name_come_back_as_those_by_number(tmp_path):
    """Of a checkpoint that FSDP wrote: in `optimizer.bin`, in place of `optimizer.pt`."""
    module = LossModule(Net(), optimizer=OptimizerConfig(learning_rate=0.1))
    fit(module).save_checkpoint(tmp_path / "checkpoint-2")
    shutil.copytree(tmp_path / "checkpoint-2", tmp_path / "named" / "checkpoint-2")
    file = tmp_path / "named" / "checkpoint-2" / "optimizer.pt"
    state, names = load_torch(file), [name for name, _ in module.model.named_parameters()]
    for group in state["param_groups"]:
        group["params"] = [names[number] for number in group["params"]]
    state["state"] = {names[number]: values for number, values in state["state"].items()}
    file.unlink()
    torch.save(state, file.with_name("optimizer.bin"))
    ends = []
    for folder in (tmp_path, tmp_path / "named"):
        ends.append(LossModule(Net(), optimizer=OptimizerConfig(learning_rate=0.1)))
        assert fit(ends[-1], resume=folder / "checkpoint-2", epochs=2).global_step == 4
    assert same_weights(*ends)
    assert not same_weights(ends[0], module)


def test_folder_io_writes_the_scaler_to_a_separate_file(tmp_path):
    """And is set again from it."""
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    trainer = fit(LossModule(Net()), plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
    trainer.save_checkpoint(tmp_path / "checkpoint-2")
    assert load_torch(tmp_path / "checkpoint-2" / "scaler.pt")["scale"] == 64.0
    fresh = torch.amp.GradScaler("cpu", init_scale=2.0)
    fit(
        LossModule(Net()),
        resume=tmp_path / "checkpoint-2",
        plugins=[MixedPrecision("16-mixed", "cpu", fresh)],
    )
    assert fresh.get_scale() == 64.0


def test_folder_io_saves_a_compiled_model_unwrapped(tmp_path):
    """Under `torch.compile` names begin with another word."""
    module = LossModule(Net())
    module.model = torch.compile(module.model, backend="eager")
    fit(module).save_checkpoint(tmp_path / "checkpoint-2")
    assert set(read_weights(tmp_path / "checkpoint-2")) == set(Net().state_dict())
    fresh = LossModule(Net())
    fit(fresh, resume=tmp_path / "checkpoint-2")
    assert same_weights(fresh.model, module.model._orig_mod)


def test_folder_io_weights_only(tmp_path):
    """Like `save_only_model`: Lightning loads the weights, but refuses to resume training."""

    class Words:
        def save_pretrained(self, folder):
            (Path(folder) / "words.txt").write_text("a b")

    module = LossModule(Net())
    trainer = fit(module, folder_io=FolderCheckpointIO(module, processing_class=Words()))
    trainer.save_checkpoint(tmp_path / "checkpoint-2", weights_only=True)
    names = {path.name for path in (tmp_path / "checkpoint-2").iterdir()}
    assert names == {
        "_manifest.json",
        "lightning_state.pt",
        "model.safetensors",
        "trainer_state.json",
        "words.txt",
    }
    fresh = LossModule(Net())
    with pytest.raises(KeyError, match="checkpoint contains only the model"):
        fit(fresh, resume=tmp_path / "checkpoint-2")
    assert same_weights(fresh, module)


def test_folder_io_damaged_folder_raises_before_loading(tmp_path):
    module = LossModule(Net())
    fit(module).save_checkpoint(tmp_path / "checkpoint-2")
    content = (tmp_path / "checkpoint-2" / "optimizer.pt").read_bytes()
    (tmp_path / "checkpoint-2" / "optimizer.pt").write_bytes(content[:-20])
    fresh = LossModule(Net())
    before = {name: value.clone() for name, value in fresh.state_dict().items()}
    with pytest.raises(ValueError, match=r"checkpoint at .*checkpoint-2.*optimizer\.pt is damaged"):
        fit(fresh, resume=tmp_path / "checkpoint-2")
    assert all(torch.equal(before[name], value) for name, value in fresh.state_dict().items())


def test_folder_io_that_cannot_be_is_refused():
    module = LossModule(Net())
    with pytest.raises(
        TypeError, match=r"attribute=.net.: LossModule\.net is a NoneType, not .*Pass the name"
    ):
        FolderCheckpointIO(module, attribute="net")
    with pytest.raises(ValueError, match="path='s3://bucket/checkpoint-1' is a URL"):
        FolderCheckpointIO(module).load_checkpoint("s3://bucket/checkpoint-1")


def test_folder_io_of_a_user_module(tmp_path):
    """Any LightningModule; without the hooks of a `ResumableModule`, weights, optimizer and loops
    are resumed.
    """

    class Own(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, batch_idx):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.1)

    module = Own()
    fit(module, folder_io=FolderCheckpointIO(module, attribute="net")).save_checkpoint(
        tmp_path / "checkpoint-2"
    )
    assert "rng_state.pth" not in {path.name for path in (tmp_path / "checkpoint-2").iterdir()}
    assert (
        json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())["global_step"]
        == 2
    )
    fresh = Own()
    folder_io = FolderCheckpointIO(fresh, attribute="net")
    assert (
        fit(fresh, resume=tmp_path / "checkpoint-2", folder_io=folder_io, epochs=2).global_step == 4
    )


@pytest.mark.parametrize("strict", [True, False])
def test_folder_io_missing_weights_are_refused_unless_lenient(tmp_path, strict):
    """By `strict_loading`, as Lightning has it."""
    saved = fit(LossModule(Net()))
    saved.save_checkpoint(tmp_path / "checkpoint-2")
    module = LossModule(Net())
    module.model.extra = nn.Linear(2, 2)
    module.strict_loading = strict
    module.trainer = saved
    if strict:
        with pytest.raises(
            ValueError, match=r"checkpoint-2 has no values for 2 of .*extra\.weight"
        ):
            FolderCheckpointIO(module).load_checkpoint(tmp_path / "checkpoint-2")
        return
    FolderCheckpointIO(module).load_checkpoint(tmp_path / "checkpoint-2")
    assert torch.equal(
        next(module.model.parameters()), next(saved.lightning_module.model.parameters())
    )
