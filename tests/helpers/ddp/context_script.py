"""Trains causal language models on sequences that processes share (context parallel), for
`torchrun` or alone.

    torchrun --nproc_per_node=2 context_script.py OUTPUT_FOLDER CASE...
    python context_script.py OUTPUT_FOLDER CASE...

See `short_runs.train_cases`. The batch of a step is that of one
process. DEVICE=cuda takes GPUs, one for each process.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import lightrainer
from helpers.ddp.short_runs import (
    NUMBERS_OF,
    ON_CPU,
    StopAt,
    local_shard,
    short_arguments,
    train_cases,
    write,
)
from helpers.devices.cpu_rings import allow_rings_on_cpu

TWO, GRID = {"cp_size": 2}, {"cp_size": 2, "dp_shard_size": 2}
HEADS = {"sp_size": 2}
PARTS = {
    "version": 2,
    "transformer_layer_cls_to_wrap": ["Block"],
    "state_dict_type": "SHARDED_STATE_DICT",
}
BY_NEIGHBOURS = {"cp_handler": {"cp_comm_strategy": "alltoall"}}
CASES: dict[str, dict[str, Any]] = {
    "mean": {"parallelism_config": TWO | BY_NEIGHBOURS},
    "items": {"parallelism_config": TWO},
    "smooth": {"parallelism_config": TWO, "label_smoothing_factor": 0.1},
    "llama": {"parallelism_config": TWO, "gradient_checkpointing": True},
    "smooth_llama": {"parallelism_config": TWO, "label_smoothing_factor": 0.1},
    "bf16": {"parallelism_config": TWO, "bf16": True},
    "grid_items": {"parallelism_config": GRID, "fsdp": "full_shard", "fsdp_config": PARTS},
    "wide_mean": {"parallelism_config": {"cp_size": 4} | BY_NEIGHBOURS},
    "split_items": {
        "parallelism_config": TWO | {"tp_size": 2},
        "accelerator_config": {"dispatch_batches": True},
    },
    "experts": {"parallelism_config": TWO},
    "own_mean": {"parallelism_config": TWO},
    "own_items": {"parallelism_config": TWO},
    "heads_mean": {"parallelism_config": HEADS},
    "heads_items": {"parallelism_config": HEADS},
    "heads_llama": {"parallelism_config": HEADS, "gradient_checkpointing": True},
    "heads_experts": {
        "parallelism_config": HEADS,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
    },
    "heads_grid_items": {"parallelism_config": HEADS | {"dp_shard_size": 2}},
    "heads_wide_llama": {"parallelism_config": {"sp_size": 4}},
    "heads_split_items": {"parallelism_config": HEADS | {"tp_size": 2}},
}
ATTENTION = functional.scaled_dot_product_attention
RESUMED = ("items", "grid_items", "heads_items")


def form(case: str) -> str:
    return "items" if case == "bf16" else case.rpartition("_")[2]


class Block(nn.Module):
    elsewhere = False
    """Call attention by a name that is not replaced, as `from torch.nn.functional import ...`
    makes one.
    """

    def __init__(self):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(16), 0.0
        # A bias of keys changes no attention: its gradient is noise, of which AdamW would make
        # something.
        self.query, self.key, self.value = (nn.Linear(16, 16, bias=False) for _ in range(3))
        self.out = nn.Linear(16, 16)

    def forward(self, x):
        query, key, value = (
            part(self.norm(x)).unflatten(-1, (-1, 4)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        attend = ATTENTION if self.elsewhere else functional.scaled_dot_product_attention
        mixed = attend(query, key, value, is_causal=True, dropout_p=self.dropout)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Model(nn.Module):
    """Two blocks of attention over learned positions; the loss is a mean, or a sum that is
    divided by all items.
    """

    router_aux_loss_coef: float | None = None
    _no_split_modules = ["Block"]
    tp_plan = {"blocks.*.query": "colwise", "blocks.*.key": "colwise", "blocks.*.value": "colwise"}
    tp_plan["blocks.*.out"] = "rowwise"

    def __init__(self, accepts_loss_kwargs: bool):
        super().__init__()
        self.accepts_loss_kwargs = accepts_loss_kwargs
        self.words, self.places = nn.Embedding(31, 16), nn.Embedding(13, 16)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(16, 31)

    def forward(
        self, input_ids, position_ids=None, labels=None, shift_labels=None, num_items_in_batch=None
    ):
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        hidden = self.words(input_ids) + self.places(position_ids)
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(hidden)
        if labels is not None and shift_labels is None:
            shift_labels = functional.pad(labels[:, 1:], (0, 1), value=-100)
        if shift_labels is None:
            return {"logits": logits}
        reduction = "mean" if num_items_in_batch is None else "sum"
        loss = functional.cross_entropy(
            logits.flatten(0, 1), shift_labels.flatten(), reduction=reduction
        )
        if num_items_in_batch is not None:
            loss = loss / num_items_in_batch
        outputs = {"loss": loss, "logits": logits}
        if self.training and self.router_aux_loss_coef is not None:
            outputs["aux_loss"] = self.head.weight.square().mean()
            outputs["loss"] = loss + self.router_aux_loss_coef * outputs["aux_loss"]
        return outputs


class Experts(Model):
    """Adds a mean, as that of routers, to the loss that is divided by all items."""

    router_aux_loss_coef = 0.5


class OwnLoss(lightrainer.Trainer):
    """Returns the loss of the model."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if self.model_accepts_loss_kwargs:
            inputs = {**inputs, "num_items_in_batch": num_items_in_batch}
        outputs = model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


class OtherLoss(OwnLoss):
    """Returns a loss that is not the one of the model."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        result = super().compute_loss(model, inputs, return_outputs)
        return result if return_outputs else result * 1.0


class Heard(logging.Handler):
    """Keeps warnings."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def warned(folder: Path, case: str, cls: type[lightrainer.Trainer]) -> int:
    """Return how often a training of four micro-batches warned of its loss."""
    heard = Heard()
    logging.getLogger("lightrainer").addHandler(heard)
    trainer_of(folder, case, stop=2, cls=cls).train()
    logging.getLogger("lightrainer").removeHandler(heard)
    return sum("The override of compute_loss returns neither" in message for message in heard.said)


def model_of(case: str) -> nn.Module:
    if form(case) == "experts":
        return Experts(accepts_loss_kwargs=True)
    if form(case) != "llama":
        return Model(accepts_loss_kwargs=form(case) == "items")
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 31}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))


def samples(case: str, count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Sequences of 13, which is not a multiple of 4; the beginnings of those to train on are not
    targets.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(1, 31, (count, 13), generator=generator)
    labels = rows.clone()
    for i, row in enumerate(labels if seed == 1 else []):
        row[: 4 + i % 6] = -100
    if form(case) != "llama":
        return [
            {"input_ids": row, "labels": label} for row, label in zip(rows, labels, strict=True)
        ]
    mask = torch.ones_like(rows)
    for i in range(count):  # some are shorter, and padded
        mask[i, 13 - (i % 3 if seed == 1 else 2) :] = 0
    rows, labels = rows * mask, labels.where(mask.bool(), -100)
    batch = {"input_ids": rows, "labels": labels, "attention_mask": mask}
    return [{name: tensor[i] for name, tensor in batch.items()} for i in range(count)]


def refused(folder: Path, case: str) -> dict[str, Any]:
    """Return the messages of errors that only the first batch reveals."""
    elsewhere: Any = model_of("items")
    for block in elsewhere.blocks:
        block.elsewhere = True
    forgetful: Any = model_of("items")
    forgetful.blocks[1].dropout = 0.1
    cases: dict[str, dict[str, Any]] = {
        "elsewhere": {"model": elsewhere},
        "dropout": {"model": forgetful},
        "loss": {
            "compute_loss_func": (
                lambda outputs, labels, num_items_in_batch: outputs["logits"].sum()
            )
        },
    }
    errors = {}
    for name, changes in cases.items():
        trainer = trainer_of(folder / name, case, stop=1, **changes)
        try:
            trainer.train()
        except ValueError as error:
            errors[name] = str(error)
    attention = functional.scaled_dot_product_attention is ATTENTION
    warnings = [
        warned(folder / cls.__name__, case, cls)
        for cls in (lightrainer.Trainer, OwnLoss, OtherLoss)
    ]
    return {"message": errors, "attention": attention, "warnings": warnings}


def trainer_of(
    folder: Path,
    case: str,
    *,
    seed: int = 7,
    stop: int | None = None,
    cls: type[lightrainer.Trainer] | None = None,
    **changes: Any,
) -> lightrainer.Trainer:
    """16 samples in batches of 4, two of them a step, two steps a pass."""
    options = dict(CASES[case])
    groups = options.get("parallelism_config")
    if "WORLD_SIZE" not in os.environ:
        groups = {}
        options = {
            name: value for name, value in options.items() if name == "label_smoothing_factor"
        }
        options["label_names"] = ["labels"]
    options["save_strategy"] = "no" if stop or case not in RESUMED else "epoch"
    options |= {"num_train_epochs": 2, "include_num_input_tokens_seen": "all"}
    arguments = short_arguments(folder, shares=groups.get("dp_shard_size", 1), **options)
    torch.manual_seed(seed)
    parameters = {
        "train_dataset": samples(case, 16, 1),
        "eval_dataset": samples(case, 8, 2),
        **changes,
    }
    if cls is None:
        cls = OwnLoss if case.startswith("own") else lightrainer.Trainer
    return cls(**{"model": model_of(case), **parameters}, args=arguments, callbacks=[StopAt(stop)])


def seen(trainer: lightrainer.Trainer, folder: Path) -> dict[str, Any]:
    predicted: Any = trainer.predict(trainer.eval_dataset)
    trainer.save_model(str(folder / "saved"))
    history = trainer.state.log_history
    return {
        "strategy": trainer.plan.strategy.name,
        **{
            name: [entry[key] for entry in history if key in entry]
            for name, key in NUMBERS_OF.items()
        },
        "last_eval_loss": predicted.metrics["test_loss"],
        "logits": predicted.predictions[:, :11].tolist(),
        "tokens": trainer.state.num_input_tokens_seen,
        "batch": trainer.get_total_train_batch_size(trainer.args),
        "sizes": [trainer.get_cp_size(), trainer.get_sp_size()],
        "local_numel": sum(
            local_shard(parameter).numel() for parameter in trainer.model_wrapped.parameters()
        ),
        "attention": functional.scaled_dot_product_attention is ATTENTION,
    }


def main(folder: Path, cases: list[str]) -> None:
    if ON_CPU:
        allow_rings_on_cpu()
    trained = [case for case in cases if case in CASES]
    train_cases(folder, trained, trainer_of, seen, resumed=RESUMED, evaluates=False)
    for case in [case for case in cases if case not in trained]:
        write(folder, case, refused(folder / case, "items" if case == "refused" else "heads_items"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
