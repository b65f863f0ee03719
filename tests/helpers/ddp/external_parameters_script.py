"""Trains a model with a loss that has weights and a running buffer, in two processes, and resumes
it; a sharded model refuses.

torchrun --nproc_per_node 2 external_parameters_script.py OUTPUT_FOLDER
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

# before there is a group, see facade/distributed/process_group.py
import torch.distributed.nn.functional
from torch import nn

from helpers.processes.rank_training import QUIET
from lightrainer import Trainer, TrainingArguments

SHARDED: dict[str, dict[str, Any]] = {
    "fsdp 1": {"fsdp": "full_shard", "fsdp_config": {"version": 1}},
    "fsdp 2": {"fsdp": "full_shard", "fsdp_config": {"version": 2}},
}
STEPS = 6


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, labels: Any = None) -> dict[str, torch.Tensor]:
        return {"logits": self.second(torch.tanh(self.first(x)))}


class LossWithHead(nn.Module):
    """A loss with a trained head, and a buffer that counts its calls and is a part of it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.head = nn.Linear(3, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.calls += 1
        prediction = self.head(outputs["logits"]).squeeze(-1)
        return (prediction - labels).square().mean() * (1 + self.calls / 100)


def rows() -> list[dict[str, torch.Tensor]]:
    features = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
    return [{"x": x, "labels": x.sum()} for x in features]


def make_trainer(
    folder: Path, loss: LossWithHead, cls: type[Trainer] = Trainer, **options: Any
) -> Trainer:
    """Return a Trainer whose optimizer holds model and loss."""
    model = options.pop("model", None) or Regression()
    defaults = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 8,
        "max_grad_norm": 0.0,
        "save_steps": 2,
        "remove_unused_columns": False,
        "label_names": ["labels"],
    }
    function = loss if cls is Trainer else None

    class Both(cls):
        def create_optimizer(self, model: Any = None) -> Any:
            parameters = [*self.model_wrapped.parameters(), *loss.parameters()]
            self.optimizer = torch.optim.SGD(dict.fromkeys(parameters), lr=0.05, momentum=0.9)
            return self.optimizer

    return Both(
        model,
        TrainingArguments(str(folder), **{**QUIET, **defaults, **options}),
        train_dataset=rows(),
        eval_dataset=rows()[:8],
        compute_loss_func=function,
    )


def values(loss: LossWithHead) -> list[float]:
    return [value for tensor in loss.state_dict().values() for value in tensor.flatten().tolist()]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    loss = LossWithHead()
    if int(os.environ["RANK"]) == 1:
        # Only the values of the first process count.
        nn.init.zeros_(loss.head.weight)
    make_trainer(folder / "run", loss, per_device_train_batch_size=4).train()

    resumed_loss = LossWithHead()
    resumed = make_trainer(folder / "run", resumed_loss, per_device_train_batch_size=4)
    resumed.train(resume_from_checkpoint=str(folder / "run" / "checkpoint-4"))
    found: dict[str, Any] = {"whole": values(loss), "resumed": values(resumed_loss)}

    for name, options in SHARDED.items():
        try:
            make_trainer(folder / name, LossWithHead(), **options).train()
        except NotImplementedError as error:
            found[name] = str(error)
    (folder / f"found-{os.environ['RANK']}.json").write_text(json.dumps(found))
