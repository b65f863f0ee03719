"""Trains a model with two adapters under several strategies, for `torchrun`.

    torchrun --nproc_per_node=2 adapter_script.py OUTPUT_FOLDER STRATEGY...

One adapter and its head are trained, the other one is a reference. See `short_runs.train_cases`.
"""

import os
import sys
from pathlib import Path
from typing import Any

if "BESIDE" in os.environ:  # the folder of DeepSpeed
    sys.path.append(os.environ["BESIDE"])
    os.environ["DS_ACCELERATOR"] = "cpu"

import peft
import torch
from torch import nn

import lightrainer
from helpers.ddp.shard_script import STRATEGIES, Model
from helpers.ddp.short_runs import samples, seen, short_trainer, train_cases

AUTO = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
)
for stage, more in {2: {}, 3: {"stage3_param_persistence_threshold": 0}}.items():
    zero = {"zero_optimization": {"stage": stage, **more}}
    STRATEGIES[f"deepspeed{stage}"] = {"deepspeed": dict.fromkeys(AUTO, "auto") | zero}


class Untied(Model):
    """A separate head; code that asks a model for its embeddings finds them."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 11, bias=False)


def adapted(seed: int) -> peft.PeftModel:
    torch.manual_seed(3)
    base = Untied()
    torch.manual_seed(seed)
    options = {
        "target_modules": ["inner"],
        "modules_to_save": ["head"],
        "init_lora_weights": False,
    }
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, **options))
    model.add_adapter("ref", peft.LoraConfig(r=2, **options))
    for name, weight in model.named_parameters():
        if ".modules_to_save.ref." in name:
            nn.init.normal_(weight)  # where a head begins is the same for all
    return model


def trainer_of(
    folder: Path, strategy: str, *, seed: int = 7, stop: int | None = None
) -> lightrainer.Trainer:
    """See `short_trainer`; adapters begin with other numbers in each process."""
    seed += 100 * int(os.environ.get("RANK", "0"))
    shares, data = int(os.environ.get("WORLD_SIZE", "1")), (samples(16, 1), samples(12, 2))
    return short_trainer(
        folder,
        adapted(seed),
        data,
        shares=shares,
        stop=stop,
        num_train_epochs=3,
        **STRATEGIES[strategy],
    )


def told(trainer: lightrainer.Trainer, folder: Path) -> dict[str, Any]:
    """See `seen`; and the settings of the adapters."""
    model = trainer.model
    trained = sorted(name for name, weight in model.named_parameters() if weight.requires_grad)
    return {**seen(trainer, folder), "active": model.active_adapters, "trained": trained}


if __name__ == "__main__":
    train_cases(
        Path(sys.argv[1]), sys.argv[2:], trainer_of, told, resumed=STRATEGIES, evaluates=False
    )
