"""Trains models whose layers are split over processes, for `torchrun` or alone.

    torchrun --nproc_per_node=4 split_script.py OUTPUT_FOLDER CASE...
    python split_script.py OUTPUT_FOLDER CASE...

See `short_runs.train_cases`. With as many processes as a case needs,
the batch of a step is that of one process. DEVICE=cuda takes GPUs, one for each process.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lightrainer
from helpers.ddp import shard_script, short_runs
from helpers.ddp.short_runs import short_trainer

TWO, GRID = {"tp_size": 2}, {"tp_size": 2, "dp_shard_size": 2}
DISPATCHED = {"accelerator_config": {"dispatch_batches": True}}
CASES: dict[str, dict[str, Any]] = {
    "dropout": {"parallelism_config": TWO, "model": {"dropout": 0.3}},
    "sequence": {"parallelism_config": TWO, "model": {"norm": "sequence_parallel"}},
    "method": {"parallelism_config": TWO, "model": {"by_method": True}, **DISPATCHED},
    "qwen": {"parallelism_config": TWO},
    "grid": {"parallelism_config": GRID},
    "grid_fsdp": {
        "parallelism_config": GRID,
        "fsdp": "full_shard",
        "fsdp_config": {
            "version": 2,
            "transformer_layer_cls_to_wrap": ["Block"],
            "activation_checkpointing": True,
        },
    },
    "grid_parts": {
        "parallelism_config": GRID,
        "fsdp": "full_shard auto_wrap",
        "fsdp_config": {"version": 2, "state_dict_type": "SHARDED_STATE_DICT"},
        "model": {"norm": "sequence_parallel"},
        **DISPATCHED,
    },
    "grid_qwen": {"parallelism_config": GRID},
    "grid_fp16": {"parallelism_config": GRID, "fp16": True},
}
RESUMED = ("dropout", "grid", "grid_parts")


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(torch.tanh(self.up(self.norm(x)))))


class Model(shard_script.Model):
    """Two blocks between tied embeddings of an odd size; the blocks are split, and the
    embeddings too.
    """

    def __init__(self, dropout: float = 0.0, norm: str | None = None, by_method: bool = False):
        super().__init__()
        self.blocks = nn.ModuleList([Block(dropout), Block(dropout)])
        plan = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}
        if by_method:
            self.parallelize = lambda mesh: self.split_by_hand(mesh, plan)
        else:
            self.tp_plan = {
                **plan,
                "head": "colwise_gather_output",
                **({"blocks.*.norm": norm} if norm else {}),
            }

    def split_by_hand(self, mesh, plan):
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        styles = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
        parallelize_module(self, mesh, {name: styles[style]() for name, style in plan.items()})


def qwen() -> nn.Module:
    """A small one: heads in groups, normalised by weights that are whole, and tied embeddings."""
    import transformers

    sizes = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "vocab_size": 31,
        "head_dim": 4,
    }
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes, **heads))


def samples(case: str, count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    if not case.endswith("qwen"):
        return short_runs.samples(count, seed)
    rows = torch.randint(31, (count, 7), generator=torch.Generator().manual_seed(seed))
    # In an evaluation targets weigh by their number in the batches of all processes, as in the
    # reference.
    lengths = [3 + i % 5 if seed == 1 else 5 for i in range(count)]
    labels = [
        row.where(torch.arange(7) < keep, torch.tensor(-100))
        for row, keep in zip(rows, lengths, strict=True)
    ]
    for i, row in enumerate(labels):
        row[0] = i  # the first label is not a target
    return [{"input_ids": row, "labels": label} for row, label in zip(rows, labels, strict=True)]


def trainer_of(
    folder: Path, case: str, *, seed: int = 7, stop: int | None = None
) -> lightrainer.Trainer:
    """See `short_trainer`; two passes."""
    options = dict(CASES[case])
    model, groups = options.pop("model", {}), options.get("parallelism_config")
    if "WORLD_SIZE" not in os.environ:
        options, groups = {}, {}
    if case.endswith("qwen"):
        # which says what sample it is
        options["preprocess_logits_for_metrics"] = lambda logits, labels: labels[:, 0]
    torch.manual_seed(seed if stop or seed != 7 else seed + int(os.environ.get("RANK", "0")))
    return short_trainer(
        folder,
        qwen() if case.endswith("qwen") else Model(**model),
        (samples(case, 16, 1), samples(case, 8, 2)),
        shares=groups.get("dp_shard_size", 1),
        stop=stop,
        num_train_epochs=2,
        include_num_input_tokens_seen="all",
        **options,
    )


def seen(trainer: lightrainer.Trainer, folder: Path) -> dict[str, Any]:
    return {
        **short_runs.seen(trainer, folder, predicted=7),
        "max_steps": trainer.state.max_steps,
        "tokens": trainer.state.num_input_tokens_seen,
        "flos": trainer.state.total_flos,
        "batch": trainer.get_total_train_batch_size(trainer.args),
    }


if __name__ == "__main__":
    short_runs.train_cases(Path(sys.argv[1]), sys.argv[2:], trainer_of, seen, resumed=RESUMED)
