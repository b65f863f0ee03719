"""Small trainings of a plain `lightning.Trainer`, and a TrainerCallback that records its events."""

import sys
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from helpers.devices.pretended_cuda import trains_on_device
from helpers.processes.rank_training import Classifier as Network
from helpers.processes.rank_training import points
from lightrainer import Trainer as FacadeTrainer
from lightrainer import TrainingArguments
from lightrainer.callbacks import EVENTS, LightningBridge, TrainerCallback

FLAGS = {"training_stop": "T", "epoch_stop": "E", "save": "S", "evaluate": "V", "log": "L"}


def loader(count: int = 22, seed: int = 1, **options: Any) -> DataLoader:
    return DataLoader(points(count, seed), batch_size=4, **options)


class Automatic(LightningModule):
    """As a Lightning user writes it: names of metrics, a schedule by steps, and no model of that
    name.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.network = Network()

    def training_step(self, batch, batch_idx):
        loss = self.network(**batch)["loss"]
        self.log("train_loss", loss)
        self.log("train/size", float(len(batch["x"])))
        return loss

    def validation_step(self, batch, batch_idx):
        outputs = self.network(**batch)
        self.log("val_loss", outputs["loss"], batch_size=len(batch["x"]))
        right = (outputs["logits"].argmax(-1) == batch["labels"]).float().mean()
        self.log("val/accuracy", right, batch_size=len(batch["x"]))

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.network(**batch)["loss"], batch_size=len(batch["x"]))

    def predict_step(self, batch, batch_idx):
        return self.network(**batch)["logits"]

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class TwoOptimizers(LightningModule):
    """Manual optimization: two networks in turn, each with its own optimizer."""

    def __init__(self, every: int = 1) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.automatic_optimization = False
        self.every = every
        self.one, self.other = Network(), Network()

    def training_step(self, batch, batch_idx):
        losses = []
        for network, optimizer in zip((self.one, self.other), self.optimizers(), strict=True):
            loss = network(**batch)["loss"]
            self.manual_backward(loss / self.every)
            losses.append(loss)
            if (batch_idx + 1) % self.every == 0:
                self.clip_gradients(optimizer, 0.1, "norm")
                optimizer.step()
                optimizer.zero_grad()
        return sum(losses)

    def configure_optimizers(self):
        return [
            torch.optim.SGD(layer.parameters(), lr=rate)
            for layer, rate in ((self.one, 0.1), (self.other, 0.2))
        ]


def make_trainer(*callbacks: Any, **options: Any) -> Trainer:
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
        "max_epochs": 2,
    }
    quiet |= {
        "enable_checkpointing": False,
        "accelerator": "gpu" if trains_on_device() else "cpu",
        "log_every_n_steps": 1,
    }
    return Trainer(**{**quiet, **options}, callbacks=list(callbacks))


def fit(
    *callbacks: Any,
    module: Any = None,
    train: Any = None,
    ckpt_path: Any = None,
    bridge: Any = None,
    **options,
):
    """Train, with the callbacks behind a bridge that has the settings in `bridge`; returns
    bridge, trainer, module.
    """
    bridge = LightningBridge(*callbacks, **(bridge or {}))
    others = options.pop("callbacks", [])
    trainer = make_trainer(bridge, *others, **options)
    module = Automatic() if module is None else module
    validation = (
        loader(6, seed=2)
        if type(module).validation_step is not LightningModule.validation_step
        else None
    )
    trainer.fit(module, loader() if train is None else train, validation, ckpt_path=ckpt_path)
    return bridge, trainer, module


def facade(tmp_path: Any, recorder: Any, module: Any, *further: Any, **changed: Any) -> Any:
    """The same training through the facade."""
    arguments = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "num_train_epochs": 2,
    }
    arguments |= {
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    arguments |= {"use_cpu": not trains_on_device(), "dataloader_pin_memory": False, **changed}
    args = TrainingArguments(output_dir=str(tmp_path / "facade"), **arguments)
    data = {"train_dataset": points(22), "eval_dataset": points(6, seed=2)}
    trainer = FacadeTrainer(module, args, **data, callbacks=[*further, recorder])
    trainer.train()
    return trainer


def flags(control: Any) -> str:
    return "".join(
        letter if getattr(control, f"should_{name}") else "-" for name, letter in FLAGS.items()
    )


class Recorder(TrainerCallback):
    """Records each event: name, step, epoch and flags; its arguments; and the Lightning hook in
    which it came.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.given: list[dict[str, Any]] = []
        self.hooks: dict[str, set[str]] = {}

    def names(self) -> list[str]:
        return [line.split()[0] for line in self.lines]


def _noting(event: str) -> Any:
    def method(self, args, state, control, **kwargs):
        self.lines.append(f"{event} {state.global_step} {state.epoch:.4f} {flags(control)}")
        self.given.append({"event": event, "args": args, "state": state, **kwargs})
        self.hooks.setdefault(event, set()).update(_callers())

    return method


def _callers() -> set[str]:
    frame, names = sys._getframe(2), set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


for _event in EVENTS:
    setattr(Recorder, _event, _noting(_event))


class At(TrainerCallback):
    """Does something in an event, at one step or at all."""

    def __init__(self, event: str, action: Any, step: int | None = None) -> None:
        def hook(args, state, control, **kwargs):
            if step is None or state.global_step == step:
                return action(args, state, control, **kwargs)
            return None

        setattr(self, event, hook)


def raising(event: str, flag: str, step: int | None = None) -> At:
    return At(event, lambda args, state, control, **kwargs: setattr(control, flag, True), step)
