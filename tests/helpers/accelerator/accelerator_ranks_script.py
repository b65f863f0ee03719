"""Makes all calls on both accelerators, and uses ours inside of trainings, for `torchrun` in two
processes.

Every rank writes what it saw to `OUTPUT_FOLDER/rank<rank>.json`.

    torchrun --nproc_per_node=2 accelerator_ranks_script.py OUTPUT_FOLDER
"""

import json
import math
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.join import Join

import lightrainer
from helpers.accelerator import accelerator_loops  # noqa: F401 - more calls
from helpers.accelerator.accelerator_calls import CALLS, outcome, plain
from lightrainer.facade.accelerator.accelerator import Accelerator

WAYS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp1": {"fsdp": "full_shard", "fsdp_config": {"transformer_layer_cls_to_wrap": ["Block"]}},
    "fsdp2": {"fsdp": "full_shard auto_wrap", "fsdp_config": {"version": 2}},
}
# by default in accelerate, though not in the reference's Trainer
AS_THERE = {"use_seedable_sampler": False}
RANK = int(os.environ.get("RANK", "0"))
PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.tanh(self.inner(x))


class Model(nn.Module):
    _no_split_modules = ["Block"]

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 3)

    def forward(self, x, labels=None):
        logits = self.head(self.blocks[1](self.blocks[0](x)))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def points(count: int = 16) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [{"x": x, "labels": x[:3].argmax()} for x in torch.randn(count, 8, generator=generator)]


def arguments(folder: Path, **changes: Any) -> lightrainer.TrainingArguments:
    defaults = {
        "per_device_train_batch_size": 4 // PROCESSES,
        "max_steps": 2,
        "gradient_accumulation_steps": 2,
    }
    defaults |= {
        "max_grad_norm": 0.0,
        "optim": "sgd",
        "learning_rate": 0.1,
        "logging_steps": 1,
        "save_strategy": "no",
    }
    defaults |= {
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }
    return lightrainer.TrainingArguments(
        output_dir=str(folder), **{**defaults, "ddp_timeout": 60, **changes}
    )


class Watched(lightrainer.Trainer):
    """Uses its accelerator in the middle of a training, as scripts do."""

    seen: dict[str, Any]
    apart = False

    def training_step(self, model, inputs, num_items_in_batch=None):
        accelerator = self.accelerator
        with accelerator.accumulate(model):
            if not self.apart and accelerator.sync_gradients:
                return super().training_step(model, inputs, num_items_in_batch)
            with accelerator.no_sync(model):
                return super().training_step(model, inputs, num_items_in_batch)


class Watcher(lightrainer.TrainerCallback):
    def __init__(self, trainer: Watched):
        self.trainer = trainer

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        trainer, accelerator = self.trainer, self.trainer.accelerator
        if trainer.apart:
            return
        parts = [p for name, p in trainer.model.named_parameters() if "0" in name or "head" in name]
        observations = trainer.seen
        of_part = accelerator.clip_grad_norm_(parts, 0.05)
        of_all = [
            accelerator.clip_grad_norm_(trainer.model.parameters(), 1e9, norm_type=p)
            for p in (2, 1, math.inf)
        ]
        observations.setdefault("norm of a part", []).append(plain(of_part))
        observations.setdefault("norms", []).extend(map(plain, of_all))
        accelerator.clip_grad_norm_(trainer.model.parameters(), max_norm=0.2)
        accelerator.clip_grad_value_(trainer.model.parameters(), 0.03)

    def on_step_end(self, args, state, control, **kwargs):
        trainer, accelerator = self.trainer, self.trainer.accelerator
        if trainer.apart:
            return
        trainer.seen[f"weights {state.global_step}"] = plain(
            accelerator.get_state_dict(trainer.model)
        )
        wrapped = accelerator.get_state_dict(trainer.model_wrapped)
        trainer.seen["wrapped"] = sorted(wrapped) == sorted(
            accelerator.get_state_dict(trainer.model)
        )
        trainer.seen["unwrapped"] = accelerator.unwrap_model(trainer.model_wrapped) is trainer.model
        trainer.seen["prepared"] = accelerator.prepare(trainer.model) is trainer.model
        other = accelerator.prepare_model(Model().eval(), evaluation_mode=True)
        trainer.seen["other"] = type(other).__name__
        trainer.seen["type"] = [
            accelerator.distributed_type.value,
            accelerator.is_fsdp2,
            accelerator.state.is_fsdp2,
        ]
        trainer.seen["gathered"] = plain(
            accelerator.gather(torch.tensor([state.global_step + RANK]))
        )
        trainer.seen["mesh"] = accelerator.torch_device_mesh is not None


def trained(folder: Path, *, apart: bool = False, **changes: Any) -> Watched:
    torch.manual_seed(4)
    trainer = Watched(Model(), arguments(folder, **changes), train_dataset=points())
    trainer.seen, trainer.apart = {}, apart
    trainer.add_callback(Watcher(trainer))
    trainer.train()
    return trainer


def in_a_training(folder: Path, way: str) -> dict[str, Any]:
    """Observations in a training, and of its model afterwards."""
    trainer = trained(folder / way, **WAYS.get(way, {}))
    accelerator, observations = trainer.accelerator, trainer.seen
    observations["losses"] = [
        entry["loss"] for entry in trainer.state.log_history if "loss" in entry
    ]
    observations["afterwards"] = plain(accelerator.get_state_dict(trainer.model))
    accelerator.save_model(trainer.model, folder / way / "saved")
    accelerator.save({"rank": RANK}, folder / way / "thing.pt")
    accelerator.wait_for_everyone()
    observations["own model"] = outcome(lambda a: type(a.prepare(Model())).__name__, accelerator)
    return observations


def batch_of(step: int) -> dict[str, torch.Tensor]:
    rows = points()[2 * step : 2 * step + 2]
    return {name: torch.stack([row[name] for row in rows]) for name in ("x", "labels")}


def uneven(folder: Path) -> int:
    """An own loop of more batches in one process than in the other, which end together."""
    accelerator = Accelerator(arguments(folder, gradient_accumulation_steps=1))
    model = accelerator.prepare(Model())
    steps = 2 + 2 * RANK
    with Join([model]):
        for step in range(steps):
            accelerator.backward(model(**batch_of(step))["loss"])
    return steps


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    import accelerate

    torch.set_num_threads(1)
    ours = Accelerator(
        arguments(folder, gradient_accumulation_steps=3, accelerator_config=AS_THERE)
    )
    theirs = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
    observations: dict[str, Any] = {"calls": {}}
    for name, call in CALLS.items():
        observations["calls"][name] = [outcome(call, ours), outcome(call, theirs)]
    for way in WAYS:
        observations[way] = in_a_training(folder, way)
    observations["apart"] = plain(trained(folder / "apart", apart=True).model.state_dict())
    observations["uneven"] = uneven(folder)
    observations["ended"] = ours.end_training() is None and not torch.distributed.is_initialized()
    (folder / f"rank{RANK}.json").write_text(json.dumps(observations))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
