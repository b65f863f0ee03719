"""One small training, the same for lightrainer and for the reference, reported to a tracker."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from helpers.devices.pretended_cuda import trains_on_device

SECRET = "a-secret-not-to-be-read"


class Config:
    """Configuration of a model."""

    def to_dict(self) -> dict[str, Any]:
        return {"width": 4, "nested": {"depth": 2, "kinds": {"first": "linear"}}}

    def to_json_string(self) -> str:
        return '{"width": 4}'


class Small(nn.Module):
    """A line through points."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 1)
        self.config = Config()

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        logits = self.line(x).squeeze(-1)
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.mse_loss(logits, labels), "logits": logits}

    def num_parameters(self) -> int:
        return 5


def points(count: int = 8) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [{"x": x, "labels": x.sum()} for x in torch.randn(count, 4, generator=generator)]


def make_trainer(
    api: Any, folder: Path, callbacks: list[Any] | None = None, model: Any = None, **changes: Any
) -> Any:
    """A trainer of four steps, with a log after each and an evaluation at the end."""
    settings = {
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "num_train_epochs": 1,
    }
    settings |= {
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "eval_strategy": "epoch",
        "save_strategy": "no",
    }
    settings |= {
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not trains_on_device(),
        "dataloader_pin_memory": False,
    }
    # No Space is the default here, as since transformers 5.6.
    settings |= {
        "hub_token": SECRET,
        "trackio_space_id": None,
        "output_dir": str(folder),
        **changes,
    }
    torch.manual_seed(5)
    args = api.TrainingArguments(**settings)
    model = Small() if model is None else model
    trainer = api.Trainer(
        model, args, train_dataset=points(), eval_dataset=points(4), callbacks=callbacks
    )
    trainer.remove_callback(callback_of(trainer, "PrinterCallback"))
    return trainer


def callback_of(made: Any, name: str) -> Any:
    """The callback whose class is called so."""
    return next(
        callback for callback in made.callback_handler.callbacks if type(callback).__name__ == name
    )


def without_times(logged: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is measured by a clock."""
    return {
        name: value
        for name, value in logged.items()
        if not name.endswith(("runtime", "per_second"))
    }
